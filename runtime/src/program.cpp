#include "frugalvit/program.h"

#include <cmath>

#include "reader.h"

namespace frugalvit {

Program Reader::read() {
    Fields fields(file_.program(), "top");
    program_.name = fields.text("name");
    image(fields.object("image"));
    buffers(fields.get("buffers", Json::Kind::object));
    const std::vector<Json>& steps = fields.list("steps");
    if (steps.empty() || steps.size() > most_steps) fields.fail("no steps, or more than 10000");
    for (std::size_t i = 0; i < steps.size(); ++i) {
        Fields step(steps[i], "steps[" + std::to_string(i) + "]");
        number_ = static_cast<int>(i);
        read_step(step);
        step.done();
    }
    program_.logits = buffer(fields, "logits");
    const Buffer& logits = program_.buffers[program_.logits];
    if (logits.rows != 1) fields.fail("logits of more than one row");
    if (const Json* labels = fields.optional("labels", Json::Kind::array)) {
        if (static_cast<int>(labels->items.size()) != logits.columns) fields.fail("not one label for each class");
        for (const Json& label : labels->items) {
            if (label.kind != Json::Kind::string) fields.fail("a label that is no text");
            program_.labels.push_back(label.string);
        }
    }
    fields.done();
    if (used_.size() != file_.tensors()) fields.fail("there are tensors that no step uses");
    return std::move(program_);
}

void Reader::image(Fields fields) {
    Image& image = program_.image;
    image.height = fields.whole("height", 1, 4096);
    image.width = fields.whole("width", 1, 4096);
    const std::vector<Json>&mean = fields.list("mean"), &std = fields.list("std"), &cover = fields.list("cover");
    image.channels = static_cast<int>(mean.size());
    if ((mean.size() != 1 && mean.size() != 3) || std.size() != mean.size()) fields.fail("not 1 or 3 means and deviations");
    if (cover.size() != 2) fields.fail("'cover' is not a pair");
    image.cover_height = fields.whole(cover[0], "cover", image.height, 8192);
    image.cover_width = fields.whole(cover[1], "cover", image.width, 8192);
    image.filter = fields.text("filter");
    if (image.filter != "bicubic" && image.filter != "bilinear") fields.fail("filter is neither bicubic nor bilinear");
    for (std::size_t c = 0; c < mean.size(); ++c) {
        if (mean[c].kind != Json::Kind::number || std[c].kind != Json::Kind::number || !(std[c].number > 0))
            fields.fail("means and deviations are numbers, deviations above 0");
        for (int value = 0; value < 256; ++value) {
            image.normalized[c][value] =
                (static_cast<float>(value) / 255.0f - static_cast<float>(mean[c].number)) / static_cast<float>(std[c].number);
            if (!std::isfinite(image.normalized[c][value])) fields.fail("means and deviations that make no finite pixels");
        }
    }
    fields.done();
}

void Reader::buffers(const Json& object) {
    Fields fields(object, "buffers");
    std::size_t total = 0;
    for (const auto& [name, shape] : object.members) {
        if (shape.kind != Json::Kind::array || shape.items.size() != 2) fields.fail("'" + name + "' is not [rows, columns]");
        program_.buffers.push_back(
            {name, fields.whole(shape.items[0], name, 1, most_rows), fields.whole(shape.items[1], name, 1, most_columns)});
        total += program_.buffers.back().size();
        if (total > most_numbers) fields.fail("more than 2^26 numbers in all, each row padded to a multiple of 16");
    }
}

Program read_program(const PackedFile& file) { return Reader(file).read(); }

}  // namespace frugalvit
