// A packed file is read back, and files that are not exactly right are refused with the reason.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "frugalvit/model.h"
#include "mutations.h"

namespace {

using namespace frugalvit;

void load(std::vector<std::uint8_t> bytes) { Model model{PackedFile(std::move(bytes))}; }

std::vector<std::uint8_t> replaced(const std::vector<std::uint8_t>& bytes, const std::string& old, const std::string& text) {
    std::string whole(bytes.begin(), bytes.end());
    const std::size_t at = whole.find(old);
    check::that(at != std::string::npos && old.size() == text.size(), "the file holds " + old);
    whole.replace(at, old.size(), text);
    std::vector<std::uint8_t> out(whole.begin(), whole.end());
    with_checksum(out);
    return out;
}

std::vector<std::uint8_t> file_of(const std::string& header, std::size_t data) {
    std::vector<std::uint8_t> out(8 + header.size() + data);
    const std::uint64_t size = header.size();
    std::memcpy(out.data(), &size, 8);
    std::memcpy(out.data() + 8, header.data(), header.size());
    return out;
}

}  // namespace

int main(int, char** words) {
    const std::vector<std::uint8_t> bytes = read_bytes(words[1]);
    const Model model{PackedFile(bytes)};
    check::that(model.program().name == "tiny" && model.classes() == 5, "the program is read");

    const auto refuses = [&](const char* old, const char* text, const char* reason) {
        check::refuses<FileError>([&] { load(replaced(bytes, old, text)); }, reason);
    };
    refuses("frugalvit-packed", "frugalvit-Packed", "not a packed model: its header does not say 'frugalvit-packed'");
    refuses("\"version\":\"1\"", "\"version\":\"2\"", "version 1");
    refuses("\"checksum\"", "\"checksam\"", "checksam");
    refuses("\"F32\"", "\"F64\"", "F64");
    refuses("\\\"kind\\\":\\\"mlp\\\"", "\\\"kind\\\":\\\"mlq\\\"", "unknown kind 'mlq'");
    refuses("\\\"slope\\\"", "\\\"sloqe\\\"", "no 'slope'");
    refuses("\\\"heads\\\":1", "\\\"heads\\\":3", "heads do not divide");
    refuses("\\\"side\\\":2", "\\\"side\\\":3", "grid");
    refuses("\\\"name\\\":", "\\\"nane\\\":", "no 'name'");
    refuses("\\\"0x\\\":[64,16]", "\\\"0x\\\":[65,16]", "steps[");
    refuses("\"shape\":[16,12]", "\"shape\":[16, 0]", "a side of 0");
    refuses("\\\"0x\\\":[64,16]", "\\\"0x\\\":[64,17]", "steps[0]");

    // Other safetensors files: without metadata, with none of their own, as PyTorch writes them, and such that are odd.
    for (const char* metadata : {"", "{}", "{\"format\":\"pt\"}", "{\"format\":1}", "[]"}) {
        const std::string names = *metadata ? std::string("\"__metadata__\":") + metadata + "," : "";
        const std::string ordinary = "{" + names + "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
        check::refuses<FileError>([&] { load(file_of(ordinary, 4)); }, "not a packed model");
        check::refuses<FileError>([&] { load(file_of(ordinary, 4)); }, "`frugalvit pack` writes one");
    }
    check::refuses<FileError>([&] { load(file_of("[1]", 0)); }, "not a packed model");

    // A name of four bytes: too long a form, a surrogate, past the last character, without an end or without a beginning.
    const auto named = [&](const std::string& name) { return replaced(bytes, "\\\"tiny\\\"", "\\\"" + name + "\\\""); };
    for (const char* name : {"\xC1\xBFxx", "\xE0\x9F\xBFx", "\xED\xA0\x80x", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                             "\xF8\x88\x80\x80", "xxx\xC3", "xx\xE2\x82", "x\xF0\x9F\x98", "\x80xxx", "x\xFFxx", "\xC3xxx"})
        check::refuses<FileError>([&] { load(named(name)); }, "bytes that are not UTF-8");
    for (const char* name : {"\xC2\x80xx", "\xDF\xBFxx", "\xE0\xA0\x80x", "\xED\x9F\xBFx", "\xEE\x80\x80x", "\xEF\xBF\xBFx",
                             "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
        check::that(Model{PackedFile(named(name))}.program().name == name, "a name in UTF-8");

    // As many values as all limits of the format allow are read; more are not.
    const auto values = [](int count) {  // the array and its object are two of them
        std::string text = "{\"a\":[0";
        for (int i = 3; i < count; ++i) text += ",0";
        return text + "]}";
    };
    check::that(parse_json(values(1 << 20)).members[0].second.items.size() == (1 << 20) - 2, "2^20 values");
    check::refuses<FileError>([&] { parse_json(values((1 << 20) + 1)); }, "more than 2^20 values");

    auto longer = bytes;
    longer.push_back(0);
    with_checksum(longer);
    check::refuses<FileError>([&] { load(longer); }, "bytes after the last tensor");
    auto damaged = bytes;
    damaged[damaged.size() / 2] ^= 1;
    check::refuses<FileError>([&] { load(damaged); }, "damaged");
    for (const std::uint32_t number : {0x7F800000u, 0xFF800000u, 0x7FC00000u}) {  // infinite, or none; the last bias
        auto endless = bytes;
        std::memcpy(endless.data() + endless.size() - 4, &number, 4);
        with_checksum(endless);
        check::refuses<FileError>([&] { load(endless); }, "'bias' holds a number that is not finite");
    }
    refuses("\\\"std\\\":[0.229", "\\\"std\\\":[1e-40", "no finite pixels");
    auto huge = bytes;
    std::memset(huge.data(), 0xFF, 8);
    check::refuses<FileError>([&] { load(huge); }, "not a packed model");
    for (std::size_t size = 0; size < 40; ++size)
        check::refuses<FileError>([&] { load({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}); }, "");

    // The same logits for one thread, for more, for a batch, and step by step.
    const std::size_t size = static_cast<std::size_t>(16) * 16 * 3;
    std::vector<std::uint8_t> pixels(5 * size);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i % 251);
    std::vector<float> one(25), three(25), batch(25), traced(25);
    Runner alone(model, 1), together(model, 3);
    for (std::size_t i = 0; i < 5; ++i) {
        alone.run(pixels.data() + i * size, 1, one.data() + 5 * i);
        together.run(pixels.data() + i * size, 1, three.data() + 5 * i);
        alone.trace(pixels.data() + i * size, [&](const Step& step, const float* rows) {
            if (step.to == model.program().logits) std::copy_n(rows, 5, traced.begin() + 5 * static_cast<std::ptrdiff_t>(i));
        });
    }
    together.run(pixels.data(), 5, batch.data());
    check::that(one == three, "three threads give the logits of one");
    check::that(one == traced, "buffers that share memory give the logits of separate ones");
    check::that(one == batch, "a batch gives the logits of its pictures");
    check::that(one[0] != one[5], "pictures differ");
    return check::result();
}
