// The runtime for Python: arrays in, arrays out.
#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "frugalvit/model.h"

namespace nb = nanobind;

namespace {

using namespace frugalvit;
using Pixels = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Pixels3 = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float>;
using Array3 = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>>;
using Timing = std::tuple<std::string, int, double>;  // kind of step, its number or -1, seconds

template <class Out, class Value>
Out as_array(std::vector<Value> values, std::initializer_list<std::size_t> shape) {
    auto* owned = new std::vector<Value>(std::move(values));
    const nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<Value>*>(memory); });
    return Out(owned->data(), shape, owner);
}

Array3 read_pixels(const std::string& path) {
    Picture picture;
    {
        nb::gil_scoped_release free;
        picture = read_picture(path);
    }
    const std::initializer_list<std::size_t> shape = {static_cast<std::size_t>(picture.height),
                                                      static_cast<std::size_t>(picture.width),
                                                      static_cast<std::size_t>(picture.channels)};
    return as_array<Array3>(std::move(picture.pixels), shape);
}

// Calls from several threads wait for each other.
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
            const std::lock_guard alone(one_at_a_time_);
            runner_.run(pixels.data(), static_cast<int>(batch), out.data());
        }
        return as_array<Logits>(std::move(out), {batch, classes});
    }

    // A picture_HWC of any size, resized and cut as the file says, to logits_C.
    Logits picture_logits(const Pixels3& pixels) {
        std::vector<float> out(model_.classes());
        {
            const PictureView picture = as_picture(pixels);
            nb::gil_scoped_release free;
            const std::lock_guard alone(one_at_a_time_);
            run(picture, out.data());
        }
        return as_array<Logits>(std::move(out), {static_cast<std::size_t>(model_.classes())});
    }

    // Where the time of one picture goes, over all threads, in the fastest of some runs.
    std::vector<Timing> step_seconds(const Pixels3& pixels, int runs) {
        const PictureView picture = as_picture(pixels);
        const std::vector<Step>& steps = model_.program().steps;
        std::vector<float> out(model_.classes());
        std::vector<double> fastest;
        {
            nb::gil_scoped_release free;
            const std::lock_guard alone(one_at_a_time_);
            double least = std::numeric_limits<double>::infinity();
            for (int i = 0; i < std::max(runs, 1); ++i) {
                std::vector<double> seconds(steps.size() + 2);
                runner_.seconds = &seconds;
                run(picture, out.data());
                runner_.seconds = nullptr;
                const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
                if (total < least) {
                    least = total;
                    fastest = std::move(seconds);
                }
            }
        }
        std::vector<Timing> timings;
        for (std::size_t i = 0; i < steps.size(); ++i)
            timings.emplace_back(steps[i].kind, steps[i].kind == "pack" ? -1 : steps[i].number, fastest[i]);
        timings.emplace_back("resize", -1, fastest[steps.size()]);
        timings.emplace_back("wait for other threads", -1, fastest[steps.size() + 1]);
        return timings;
    }

    const std::string& name() const { return model_.program().name; }
    const std::vector<std::string>& labels() const { return model_.program().labels; }
    std::string kernels() const { return model_.kernels().name; }
    std::vector<int> image() const {
        const Image& image = model_.program().image;
        return {image.height, image.width, image.channels};
    }

private:
    static PictureView as_picture(const Pixels3& pixels) {
        const int channels = static_cast<int>(pixels.shape(2));
        if ((channels != 1 && channels != 3) || !pixels.size())
            throw nb::value_error("a picture has 1 or 3 channels and at least a pixel");
        return {static_cast<int>(pixels.shape(0)), static_cast<int>(pixels.shape(1)), channels, pixels.data()};
    }

    void run(const PictureView& picture, float* logits) {
        const int wanted = model_.program().image.channels;
        if (picture.channels == wanted) return runner_.run(picture, logits);
        Picture copy{picture.height, picture.width, picture.channels, {picture.pixels.begin(), picture.pixels.end()}};
        runner_.run(with_channels(std::move(copy), wanted), logits);
    }

    Model model_;
    Runner runner_;
    std::mutex one_at_a_time_;
};

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The one-bit runtime: packed models on a CPU.";
    nb::exception<FileError>(module, "FileError", PyExc_ValueError);
    module.def("read_picture", &read_pixels, nb::arg("path"));
    nb::class_<PackedModel>(module, "PackedModel")
        .def(nb::init<const std::string&, int>(), nb::arg("path"), nb::arg("threads") = 1)
        .def("logits", &PackedModel::logits, nb::arg("image_BHWC").noconvert())
        .def("picture_logits", &PackedModel::picture_logits, nb::arg("picture_HWC").noconvert())
        .def("step_seconds", &PackedModel::step_seconds, nb::arg("picture_HWC").noconvert(), nb::arg("runs") = 50)
        .def_prop_ro("name", &PackedModel::name)
        .def_prop_ro("labels", &PackedModel::labels)
        .def_prop_ro("kernels", &PackedModel::kernels)
        .def_prop_ro("image", &PackedModel::image);
}
