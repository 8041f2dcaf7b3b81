// The runtime for Python: arrays in, arrays out.
#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>

#include <unistd.h>

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

// The name of a file as the system has it, UTF-8 or not: of str, bytes or a path.
std::string file_name(const nb::object& path) {
    PyObject* bytes = nullptr;
    if (!PyUnicode_FSConverter(path.ptr(), &bytes)) throw nb::python_error();
    const nb::bytes name = nb::steal<nb::bytes>(bytes);
    return {name.c_str(), name.size()};
}

// Names of files stand in messages, and so may bytes that are no UTF-8: the same characters that Python's paths have for them.
void raise_file_error(const std::exception_ptr& raised, void* type) {
    try {
        std::rethrow_exception(raised);
    } catch (const FileError& error) {
        const nb::object text = nb::steal(PyUnicode_DecodeFSDefault(error.what()));
        if (text.is_valid()) PyErr_SetObject(static_cast<PyObject*>(type), text.ptr());
    }
}

Array3 read_pixels(const nb::object& path) {
    const std::string name = file_name(path);
    Picture picture;
    {
        nb::gil_scoped_release free;
        picture = read_picture(name);
    }
    const std::initializer_list<std::size_t> shape = {static_cast<std::size_t>(picture.height),
                                                      static_cast<std::size_t>(picture.width),
                                                      static_cast<std::size_t>(picture.channels)};
    return as_array<Array3>(std::move(picture.pixels), shape);
}

// Calls from several threads wait for each other.
class PackedModel {
public:
    PackedModel(const nb::object& path, int threads)
        : model_(PackedFile(read_bytes(file_name(path)))), threads_(std::clamp(threads, 1, 256)) {
        begin();
    }

    ~PackedModel() {
        if (process_ != getpid()) (void)session_.release();
    }

    // image_BHWC of the model's size to logits_BC.
    Logits logits(const Pixels& pixels) {
        const Image& image = model_.program().image;
        if (pixels.shape(1) != static_cast<std::size_t>(image.height) ||
            pixels.shape(2) != static_cast<std::size_t>(image.width) ||
            pixels.shape(3) != static_cast<std::size_t>(image.channels))
            throw nb::value_error("pixels are not of the model's height, width and channels");
        const std::size_t batch = pixels.shape(0), classes = model_.classes();
        std::vector<float> out(batch * classes);
        Session& session = begin();
        {
            nb::gil_scoped_release free;
            const std::lock_guard alone(session.one_at_a_time);
            session.runner.run(pixels.data(), static_cast<int>(batch), out.data());
        }
        return as_array<Logits>(std::move(out), {batch, classes});
    }

    // A picture_HWC of any size, resized and cut as the file says, to logits_C.
    Logits picture_logits(const Pixels3& pixels) {
        std::vector<float> out(model_.classes());
        Session& session = begin();
        {
            const PictureView picture = as_picture(pixels);
            nb::gil_scoped_release free;
            const std::lock_guard alone(session.one_at_a_time);
            run(session.runner, picture, out.data());
        }
        return as_array<Logits>(std::move(out), {static_cast<std::size_t>(model_.classes())});
    }

    // Where the time of one picture goes, over all threads, in the fastest of some runs.
    std::vector<Timing> step_seconds(const Pixels3& pixels, int runs) {
        const PictureView picture = as_picture(pixels);
        const std::vector<Step>& steps = model_.program().steps;
        std::vector<float> out(model_.classes());
        std::vector<double> fastest;
        Session& session = begin();
        {
            nb::gil_scoped_release free;
            const std::lock_guard alone(session.one_at_a_time);
            double least = std::numeric_limits<double>::infinity();
            for (int i = 0; i < std::max(runs, 1); ++i) {
                std::vector<double> seconds(steps.size() + 2);
                const Timed timed(session.runner, seconds);
                run(session.runner, picture, out.data());
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
    // The threads of one process, and whose turn it is.
    struct Session {
        Session(const Model& model, int threads) : runner(model, threads) {}

        Runner runner;
        std::mutex one_at_a_time;
    };

    // While it lives, a runner adds to `seconds`, also where it throws.
    struct Timed {
        Timed(Runner& runner, std::vector<double>& seconds) : runner(runner) { runner.seconds = &seconds; }
        ~Timed() { runner.seconds = nullptr; }

        Runner& runner;
    };

    // This process's session, to be asked for before Python's lock is released. A child of fork() has none of its parent's
    // threads, and the mutex as it was, so it makes a session of its own and never touches the other.
    Session& begin() {
        if (process_ != getpid()) {
            (void)session_.release();
            session_ = std::make_unique<Session>(model_, threads_);
            process_ = getpid();
        }
        return *session_;
    }

    static PictureView as_picture(const Pixels3& pixels) {
        const int channels = static_cast<int>(pixels.shape(2));
        if ((channels != 1 && channels != 3) || !pixels.size())
            throw nb::value_error("a picture has 1 or 3 channels and at least a pixel");
        return {static_cast<int>(pixels.shape(0)), static_cast<int>(pixels.shape(1)), channels, pixels.data()};
    }

    void run(Runner& runner, const PictureView& picture, float* logits) const {
        const int wanted = model_.program().image.channels;
        if (picture.channels == wanted) return runner.run(picture, logits);
        Picture copy{picture.height, picture.width, picture.channels, {picture.pixels.begin(), picture.pixels.end()}};
        runner.run(with_channels(std::move(copy), wanted), logits);
    }

    Model model_;
    int threads_;
    std::unique_ptr<Session> session_;
    pid_t process_ = 0;  // whose session it is
};

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The one-bit runtime: packed models on a CPU.";
    const nb::exception<FileError> file_error(module, "FileError", PyExc_ValueError);
    nb::register_exception_translator(raise_file_error, file_error.ptr());
    module.def("read_picture", &read_pixels, nb::arg("path"));
    nb::class_<PackedModel>(module, "PackedModel")
        .def(nb::init<const nb::object&, int>(), nb::arg("path"), nb::arg("threads") = 1)
        .def("logits", &PackedModel::logits, nb::arg("image_BHWC").noconvert())
        .def("picture_logits", &PackedModel::picture_logits, nb::arg("picture_HWC").noconvert())
        .def("step_seconds", &PackedModel::step_seconds, nb::arg("picture_HWC").noconvert(), nb::arg("runs") = 50)
        .def_prop_ro("name", &PackedModel::name)
        .def_prop_ro("labels", &PackedModel::labels)
        .def_prop_ro("kernels", &PackedModel::kernels)
        .def_prop_ro("image", &PackedModel::image);
}
