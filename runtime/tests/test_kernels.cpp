// Every kernel of an instruction set gives the reference's bits, for awkward sizes.
//
// test_kernels SET; leaves with 77 where this CPU runs other sets, but not this one, and with 1 where it runs none.
#include <cstring>

#include "check.h"
#include "random_steps.h"

namespace {

using namespace frugalvit;

constexpr int sizes[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 256, 384};
constexpr int sides[] = {1, 3, 31, 63, 64, 65, 127, 128, 200};

bool same(const Array<float>& a, const Array<float>& b, int rows, int columns) {
    for (int row = 0; row < rows; ++row) {
        const std::size_t at = static_cast<std::size_t>(row) * padded(columns);
        if (std::memcmp(a.data() + at, b.data() + at, columns * sizeof(float)) != 0) return false;
    }
    return true;
}

Array<float> copy(const Array<float>& from) {
    Array<float> to(from.size());
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    return to;
}

std::string named(const Kernels& kernels, const std::string& what, std::initializer_list<int> numbers) {
    std::string text = kernels.name + (" " + what);
    for (const int number : numbers) (text += ' ') += std::to_string(number);
    return text;
}

// Runs `call(kernels, to)` with the reference and with `fast` from the same start, rows outside the range included.
template <class Call>
void compare(const Kernels& fast, Random& random, int rows, int columns, Call call, const std::string& what) {
    Array<float> expected = random.buffer(rows, columns), found = copy(expected);
    call(reference_kernels(), expected);
    call(fast, found);
    check::that(same(expected, found, rows, columns), what);
}

void compare_rows(const Kernels& fast, Random& random, int columns, int rows) {
    const Array<float> x = random.buffer(rows + 2, columns);
    const Rows middle{1, rows};
    const Affine affine = random.affine(columns);
    compare(
        fast, random, rows + 2, columns,
        [&](const Kernels& k, Array<float>& y) { k.affine(affine, x.data(), y.data(), middle); },
        named(fast, "affine", {columns, rows}));
    compare(
        fast, random, rows + 2, columns, [&](const Kernels& k, Array<float>& y) { k.add(affine, x.data(), y.data(), middle); },
        named(fast, "add", {columns, rows}));
    const Linear linear = random.linear(columns, columns);
    Scratch space = scratch(scratch_of(linear));
    compare(
        fast, random, rows + 2, columns,
        [&](const Kernels& k, Array<float>& y) { k.linear(linear, x.data(), y.data(), middle, space); },
        named(fast, "linear", {columns, rows}));
    for (const int expand : {1, 2, 3, 4, 8}) {
        const Mlp mlp = random.mlp(columns, expand);
        Scratch wide = scratch(scratch_of(mlp));
        compare(
            fast, random, rows + 2, columns,
            [&](const Kernels& k, Array<float>& y) { k.mlp(mlp, x.data(), y.data(), middle, wide); },
            named(fast, "mlp", {columns, expand, rows}));
    }
}

void compare_products(const Kernels& fast, Random& random, int in, int out) {
    const Real product = random.real_product(in, out);
    const Array<float> x = random.buffer(16, in), positions = random.reals(13, out);
    for (const int rows : {1, 3, 8, 13})
        compare(
            fast, random, 13, out,
            [&](const Kernels& k, Array<float>& y) { k.real(product, x.data(), positions.data(), y.data(), rows); },
            named(fast, "real", {in, out, rows}));
    compare(
        fast, random, 1, out, [&](const Kernels& k, Array<float>& y) { k.head(product, x.data(), y.data(), {0, panels(out)}); },
        named(fast, "head", {in, out}));
}

void compare_grids(const Kernels& fast, Random& random, int columns, int height, int width) {
    const int rows = height * width;
    const Array<float> x = random.buffer(rows, columns);
    const Cross cross = random.cross(columns, height, width);
    compare(
        fast, random, rows, columns, [&](const Kernels& k, Array<float>& y) { k.cross(cross, x.data(), y.data(), {0, rows}); },
        named(fast, "cross", {columns, height, width}));
    for (const int side : {1, 2, 3, 4}) {
        if (height % side || width % side) continue;
        const Pool pool{columns, width, side};
        compare(
            fast, random, rows / side / side, columns,
            [&](const Kernels& k, Array<float>& y) { k.pool(pool, x.data(), y.data(), {0, rows / side / side}); },
            named(fast, "pool", {columns, height, width, side}));
    }
    if (height % 2 || width % 2) return;
    for (const int copies : {1, 2, 3}) {
        const Merge merge = random.merge(columns, columns * copies, height, width);
        Scratch space = scratch(scratch_of(merge));
        compare(
            fast, random, rows / 4, columns * copies,
            [&](const Kernels& k, Array<float>& y) { k.merge(merge, x.data(), y.data(), {0, rows / 4}, space); },
            named(fast, "merge", {columns, copies, height, width}));
    }
}

void compare_attention(const Kernels& fast, Random& random, int heads, int head_width, int height, int width, int side,
                       float limit) {
    const Attention step = random.attention(heads, head_width, height, width, side, limit);
    const Array<float> query = random.buffer(step.queries, step.width), key = random.buffer(step.keys, step.width);
    const Array<float> value = random.buffer(step.keys, step.width);
    Array<std::uint16_t> signs(attention_signs(step));
    Array<std::uint32_t> packed(attention_words(step));
    Scratch space = scratch(scratch_of(step));
    compare(
        fast, random, step.queries, step.width,
        [&](const Kernels& k, Array<float>& y) {
            const int some = step.keys / 3;
            k.sign_attention(step, key.data(), value.data(), signs.data(), {some, step.keys - some});
            k.sign_attention(step, key.data(), value.data(), signs.data(), {0, some});
            k.pack_attention(step, signs.data(), packed.data());
            k.attention(step, query.data(), key.data(), value.data(), packed.data(), y.data(), {0, step.queries}, space);
        },
        named(fast, "attention", {heads, head_width, height, width, side}));
}

// As `compare`, for `size` bytes that start at an odd address; those around them must stay as they are.
template <class Call>
void compare_bytes(const Kernels& fast, Random& random, int size, Call call, const std::string& what) {
    constexpr int around = 17;
    std::vector<std::uint8_t> expected = random.bytes(size + 2 * around), found = expected;
    call(reference_kernels(), expected.data() + around);
    call(fast, found.data() + around);
    check::that(expected == found, what);
}

void compare_resizing(const Kernels& fast, Random& random, int in, int out, const std::string& filter) {
    for (const int first : {0, out / 3}) {  // of the outputs that a frame keeps
        const int outputs = out - 2 * first;
        const Taps taps(in, out, first, outputs, filter);
        for (const int channels : {1, 3}) {
            const std::vector<std::uint8_t> row = random.bytes(in * channels + Taps::margin);
            compare_bytes(
                fast, random, outputs * channels,
                [&](const Kernels& k, std::uint8_t* to) { k.shrink(taps, row.data(), to, outputs, channels); },
                named(fast, "shrink " + filter, {in, out, first, channels}));
        }
        for (const int columns : sides) {
            const std::vector<std::uint8_t> rows = random.bytes(taps.count * columns);
            const std::int32_t* weights = taps.weights.data() + static_cast<std::size_t>(outputs / 2) * taps.count;
            compare_bytes(
                fast, random, columns,
                [&](const Kernels& k, std::uint8_t* to) { k.blend(weights, taps.count, rows.data(), to, columns); },
                named(fast, "blend " + filter, {in, out, first, columns}));
        }
    }
}

void compare_all(const Kernels& fast, Random random) {
    for (const int columns : sizes)
        for (const int rows : {1, 3, 8, 13}) {
            if (columns > 200 && rows != 8) continue;
            compare_rows(fast, random, columns, rows);
        }
    compare_rows(fast, random, 64, 41);  // more rows than signs are taken of at once
    for (const int in : sizes)
        for (const int out : {1, 16, 33, 200}) compare_products(fast, random, in, out);
    for (const int columns : sizes) {
        if (columns > 200) continue;
        compare_grids(fast, random, columns, 3, 5);
        compare_grids(fast, random, columns, 4, 8);
        compare_grids(fast, random, columns, 3, 6);
        compare_grids(fast, random, columns, 1, 1);
    }
    for (const int head_width : {1, 3, 5, 16, 31, 32, 48, 63, 64, 65, 127, 128, 200, 240})
        for (const int width : {1, 3, 7, 13, 16, 31, 63, 65, 127, 200})
            compare_attention(fast, random, 3, head_width, 1, width, 1, 0.7f / static_cast<float>(width));
    for (const int side : {2, 4})
        for (const float limit : {0.0f, 0.02f, 0.3f, 1.0f}) compare_attention(fast, random, 2, 64, 12, 20, side, limit);
}

int not_tried(const std::string& name) {
    std::string others;
    for (const Kernels* const* each = available_kernels() + 1; *each; ++each) (others += ' ') += (*each)->name;
    std::printf("%s: NOT TRIED, this CPU does not run it; it runs%s\n", name.c_str(),
                others.empty() ? " the reference alone, so nothing was compared" : others.c_str());
    return others.empty() ? 1 : 77;
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) return 2;
    const std::string name = words[1];
    const Kernels* const* fast = available_kernels() + 1;
    while (*fast && name != (*fast)->name) ++fast;
    if (!*fast) return not_tried(name);
    compare_all(**fast, Random(7, Numbers::sixteenths));
    compare_all(**fast, Random(8, Numbers::others));
    Random random(9, Numbers::others);
    for (const int in : sides)
        for (const int out : sides)
            for (const char* filter : {"bicubic", "bilinear"}) compare_resizing(**fast, random, in, out, filter);
    std::printf("%s: ", name.c_str());
    return check::result();
}
