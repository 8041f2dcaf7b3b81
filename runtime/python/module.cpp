// The runtime for Python: arrays in, arrays out.
#include <algorithm>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "frugalvit/model.h"

namespace nb = nanobind;

namespace {

using namespace frugalvit;
using Pixels = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Pixels3 = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float>;

Logits as_array(std::vector<float> values, std::initializer_list<std::size_t> shape) {
    auto* owned = new std::vector<float>(std::move(values));
    const nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
    return Logits(owned->data(), shape, owner);
}

class PackedModel {
public:
    PackedModel(const std::string& path, int threads)
        : model_(PackedFile(read_bytes(path))), runner_(model_, std::clamp(threads, 1, 256)) {}

    // image_BHWC of the model's size to logits_BC.
    Logits logits(const Pixels& pixels) {
        const Image& image = model_.program().image;
        if (pixels.shape(1) != static_cast<std::size_t>(image.height) ||
            pixels.shape(2) != static_cast<std::size_t>(image.width) ||
            pixels.shape(3) != static_cast<std::size_t>(image.channels))
            throw nb::value_error("pixels are not of the model's height, width and channels");
        const std::size_t batch = pixels.shape(0), classes = model_.classes();
        std::vector<float> out(batch * classes);
        {
            nb::gil_scoped_release free;
            runner_.run(pixels.data(), static_cast<int>(batch), out.data());
        }
        return as_array(std::move(out), {batch, classes});
    }

    // A picture_HWC of any size, resized and cut as the file says, to logits_C.
    Logits picture_logits(const Pixels3& pixels) {
        const int channels = static_cast<int>(pixels.shape(2));
        if ((channels != 1 && channels != 3) || !pixels.size())
            throw nb::value_error("a picture has 1 or 3 channels and at least a pixel");
        std::vector<float> out(model_.classes());
        {
            nb::gil_scoped_release free;
            const Picture picture{static_cast<int>(pixels.shape(0)),
                                  static_cast<int>(pixels.shape(1)),
                                  channels,
                                  {pixels.data(), pixels.data() + pixels.size()}};
            runner_.run(with_channels(picture, model_.program().image.channels), out.data());
        }
        return as_array(std::move(out), {static_cast<std::size_t>(model_.classes())});
    }

    const std::string& name() const { return model_.program().name; }
    const std::vector<std::string>& labels() const { return model_.program().labels; }
    std::string kernels() const { return model_.kernels().name; }
    std::vector<int> image() const {
        const Image& image = model_.program().image;
        return {image.height, image.width, image.channels};
    }

private:
    Model model_;
    Runner runner_;
};

}  // namespace

NB_MODULE(frugalvit_native, module) {
    nb::exception<FileError>(module, "FileError", PyExc_ValueError);
    nb::class_<PackedModel>(module, "PackedModel")
        .def(nb::init<const std::string&, int>(), nb::arg("path"), nb::arg("threads") = 1)
        .def("logits", &PackedModel::logits, nb::arg("image_BHWC"))
        .def("picture_logits", &PackedModel::picture_logits, nb::arg("picture_HWC"))
        .def_prop_ro("name", &PackedModel::name)
        .def_prop_ro("labels", &PackedModel::labels)
        .def_prop_ro("kernels", &PackedModel::kernels)
        .def_prop_ro("image", &PackedModel::image);
}
