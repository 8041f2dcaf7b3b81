// One function for each kind of step: its members, and the sizes that must fit.
#include <algorithm>

#include "reader.h"

namespace frugalvit {

void Reader::read_step(Fields& fields) {
    const std::string kind = fields.text("kind");
    const int to = buffer(fields, "to"), columns = at(to).columns;
    if (kind == "tokens") return read_tokens(fields, to);
    if (kind == "patches") return read_patches(fields, to);
    if (kind == "mlp") return read_mlp(fields, to);
    if (kind == "attention") return read_attention(fields, to);
    if (kind == "pool") return read_pool(fields, to);
    if (kind == "cross") return read_cross(fields, to);
    if (kind == "merge") return read_merge(fields, to);
    if (kind == "merge_real") return read_merge_real(fields, to);
    if (kind == "mean") return read_mean(fields, to);
    if (kind == "head") return read_head(fields, to);
    if (kind != "affine" && kind != "add" && kind != "linear") fields.fail("unknown kind '" + kind + "'");
    const int from = buffer(fields, "from");
    same_shape(fields, from, to);
    if (kind == "linear") {
        if (from == to) fields.fail("'from' and 'to' are one buffer");
        return push_by_row(kind, linear(fields, columns, columns), from, to);
    }
    Affine affine{columns, reals(fields, "gain", columns), reals(fields, "bias", columns)};
    if (kind == "affine") push_by_row(kind, std::move(affine), from, to);
    else push_by_row(kind, Add{std::move(affine)}, from, to);
}

void Reader::read_tokens(Fields& fields, int to) {
    const int first = fields.whole("first", 0, at(to).rows - 1), count = fields.whole("count", 1, at(to).rows - first);
    Tokens tokens{first, count, at(to).columns, table(fields, "value", count, at(to).columns)};
    push("tokens", std::move(tokens), 1, {}, {}, {}, to);
}

void Reader::read_patches(Fields& fields, int to) {
    const Image& image = program_.image;
    const int patch = fields.whole("patch", 1, std::min(image.height, image.width));
    if (image.height % patch || image.width % patch) fields.fail("patches do not tile the image");
    const int grid_width = image.width / patch, count = image.height / patch * grid_width;
    const int first = fields.whole("first", 0, most_rows);
    if (first + count > at(to).rows) fields.fail("more patches than rows");
    Patches patches{real(fields, image.channels * patch * patch, at(to).columns),
                    table(fields, "positions", count, at(to).columns), patch, first, grid_width};
    push("patches", std::move(patches), count, {}, {}, {}, to);
}

void Reader::read_mlp(Fields& fields, int to) {
    const int from = buffer(fields, "from"), dim = at(to).columns;
    same_shape(fields, from, to);
    if (from == to) fields.fail("'from' and 'to' are one buffer");
    const int expand = fields.whole("expand", 1, most_columns / dim);
    Fields up = fields.object("up"), down = fields.object("down");
    Mlp mlp{dim, expand, linear(up, dim, dim * expand), linear(down, dim * expand, dim), {}, {}, {}, {}, 0, {}, {}, {}};
    up.done();
    down.done();
    order_hidden(mlp);
    push_by_row("mlp", std::move(mlp), from, to);
}

void Reader::read_attention(Fields& fields, int to) {
    const int query = buffer(fields, "query"), key = buffer(fields, "key"), value = buffer(fields, "value");
    same_shape(fields, query, to);
    same_shape(fields, key, value);
    const int columns = at(to).columns, side = fields.whole("side", 1, most_rows);
    if (at(key).columns != columns) fields.fail("keys and queries differ in width");
    if (to == query || to == key || to == value) fields.fail("'to' is also an input");
    auto attention = std::make_shared<Attention>();
    attention->heads = fields.whole("heads", 1, columns);
    if (columns % attention->heads) fields.fail("heads do not divide the width");
    attention->width = columns;
    if (attention->head_width() > 255) fields.fail("heads wider than 255");
    attention->queries = at(query).rows;
    attention->keys = at(key).rows;
    attention->side = side;
    attention->grid_width = grid(fields, at(query), side);
    attention->key_width = attention->grid_width / side;
    if (attention->keys != attention->queries / side / side) fields.fail("the number of keys does not fit 'side'");
    const double scale = fields.number("scale"), limit = fields.number("limit");
    if (!(scale > 0 && scale * attention->head_width() <= 40))
        fields.fail("'scale' times the width of a head is not within 0 and 40");
    if (!(limit >= 0 && limit <= 1)) fields.fail("'limit' is not within 0 and 1");
    attention->limit = static_cast<float>(limit);
    fill_exponentials(*attention, scale);
    attention->query_threshold = reals(fields, "query_threshold", columns, never_below);
    attention->key_threshold = reals(fields, "key_threshold", columns, never_below);
    attention->value_threshold = reals(fields, "value_threshold", columns, never_below);
    attention->after = activation(fields, columns);
    const int packed = program_.packed_buffer(), rows = at(to).rows;
    push("pack", PackAttention{attention}, attention->keys, {key, value}, {key, value}, {}, packed);
    pack_early();
    push("attention", Attend{attention}, rows, {query, key, value}, {query}, {key, value, packed}, to);
}

// Steps over queries may stand between the keys' last step and the attention: they come behind the packing, which then finds
// keys in the cache. Where queries are more than keys, they and the attention also run without waiting in between.
void Reader::pack_early() {
    const Step& pack = program_.steps.back();
    std::size_t place = program_.steps.size() - 1;
    for (; place > 0; --place) {
        const Step& earlier = program_.steps[place - 1];
        if (contains(pack.by_row, earlier.to) || earlier.to == pack.to || contains(earlier.whole, pack.to)) break;
    }
    std::rotate(program_.steps.begin() + static_cast<std::ptrdiff_t>(place), program_.steps.end() - 1, program_.steps.end());
}

void Reader::read_pool(Fields& fields, int to) {
    const int from = buffer(fields, "from"), side = fields.whole("side", 1, most_rows);
    const int width = grid(fields, at(from), side);
    if (at(to).columns != at(from).columns || at(to).rows != at(from).rows / side / side || from == to)
        fields.fail("'to' does not fit the pooled grid");
    push("pool", Pool{at(to).columns, width, side}, at(to).rows, {from}, {}, {from}, to);
}

void Reader::read_cross(Fields& fields, int to) {
    const int from = buffer(fields, "from"), columns = at(to).columns;
    same_shape(fields, from, to);
    if (from == to) fields.fail("'from' and 'to' are one buffer");
    const int width = grid(fields, at(from), 1);
    Cross cross{columns,
                at(from).rows / width,
                width,
                reals(fields, "center", columns),
                reals(fields, "near_rows", columns),
                reals(fields, "far_rows", columns),
                reals(fields, "near_columns", columns),
                reals(fields, "far_columns", columns),
                reals(fields, "bias", columns)};
    push("cross", std::move(cross), at(to).rows, {from}, {}, {from}, to);
}

void Reader::read_merge(Fields& fields, int to) {
    const int from = buffer(fields, "from"), in = at(from).columns, out = at(to).columns;
    const int width = grid(fields, at(from), 2);
    if (at(to).rows != at(from).rows / 4 || from == to) fields.fail("'to' does not fit the merged grid");
    if (out % in) fields.fail("the width of 'to' is no multiple of that of 'from'");
    Merge merge{in,
                out,
                width,
                weights(fields, in, 4, out),
                reals(fields, "threshold", in, never_below),
                activation(fields, out),
                table(fields, "positions", at(to).rows, out)};
    push("merge", std::move(merge), at(to).rows, {from}, {}, {from}, to);
}

void Reader::read_merge_real(Fields& fields, int to) {
    const int from = buffer(fields, "from"), in = at(from).columns;
    const int width = grid(fields, at(from), 2);
    if (at(to).rows != at(from).rows / 4 || from == to) fields.fail("'to' does not fit the merged grid");
    MergeReal merge{real(fields, 4 * in, at(to).columns), table(fields, "positions", at(to).rows, at(to).columns), in, width};
    push("merge_real", std::move(merge), at(to).rows, {from}, {}, {from}, to);
}

void Reader::read_mean(Fields& fields, int to) {
    const int from = buffer(fields, "from"), first = fields.whole("first", 0, at(from).rows - 1);
    const int count = fields.whole("count", 1, at(from).rows - first);
    if (at(to).columns != at(from).columns || at(to).rows != 1 || from == to)
        fields.fail("'to' is not one row as wide as 'from'");
    push("mean", Mean{at(to).columns, first, count}, 1, {from}, {}, {from}, to);
}

void Reader::read_head(Fields& fields, int to) {
    const int from = buffer(fields, "from");
    if (at(from).rows != 1 || at(to).rows != 1 || from == to) fields.fail("a head is from one row to another");
    push("head", Head{real(fields, at(from).columns, at(to).columns)}, panels(at(to).columns), {from}, {}, {from}, to);
}

}  // namespace frugalvit
