// Kernels that read a token's neighbors on the grid: means of squares, and the cross of pooling branches.
#pragma once

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

template <class V>
void pool(const Pool& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns), coarse_width = step.grid_width / step.side;
    const auto share = V::every(1.0f / static_cast<float>(step.side * step.side));
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int top = row / coarse_width * step.side, left = row % coarse_width * step.side;
        for (int c = 0; c < stride; c += lanes) {
            auto sum = V::every(0.0f);
            for (int i = 0; i < step.side; ++i) {
                const float* from = x + ((top + i) * step.grid_width + left) * stride + c;
                for (int j = 0; j < step.side; ++j) sum = V::add(sum, V::load(from + j * stride));
            }
            V::store(y + row * stride + c, V::multiply(sum, share));
        }
    }
}

// Some columns of one row of the grid. `rows` are the tokens above and below, nearest first, with the distance of their
// columns: 0 where they are zeros outside the grid.
struct CrossRow {
    const float* rows[4];
    int steps[4];

    CrossRow(const Cross& step, const float* z, int i, int j, int stride) {
        static constexpr float zeros[lanes] = {};
        static constexpr int away[4] = {-1, 1, -2, 2};
        for (int side = 0; side < 4; ++side) {
            const int row = i + away[side];
            const bool inside = row >= 0 && row < step.height;
            rows[side] = inside ? z + (row * step.grid_width + j) * stride : zeros;
            steps[side] = inside ? stride : 0;
        }
    }
};

template <class V>
void cross(const Cross& step, const float* z, float* x, Rows rows) {
    const int stride = padded(step.columns), width = step.grid_width;
    const auto zero = V::every(0.0f);
    for (int done = 0; done < rows.count;) {
        const int i = (rows.first + done) / width, j = (rows.first + done) % width;
        const int count = rows.count - done < width - j ? rows.count - done : width - j;
        const CrossRow near(step, z, i, j, stride);
        for (int c = 0; c < stride; c += lanes) {
            const auto center = V::load(step.center.data() + c), bias = V::load(step.bias.data() + c);
            const auto near_rows = V::load(step.near_rows.data() + c), far_rows = V::load(step.far_rows.data() + c);
            const auto near_columns = V::load(step.near_columns.data() + c), far_columns = V::load(step.far_columns.data() + c);
            const float *at = z + (rows.first + done) * stride + c, *above[4];
            for (int side = 0; side < 4; ++side) above[side] = near.rows[side] + (near.steps[side] ? c : 0);
            float* to = x + (rows.first + done) * stride + c;
            auto left2 = j >= 2 ? V::load(at - 2 * stride) : zero, left = j >= 1 ? V::load(at - stride) : zero;
            auto here = V::load(at), right = j + 1 < width ? V::load(at + stride) : zero;
            const auto next = [&](typename V::Reals right2) {
                auto sum = V::fma(center, here, bias);
                sum = V::fma(near_rows, V::add(V::load(above[0]), V::load(above[1])), sum);
                sum = V::fma(far_rows, V::add(V::load(above[2]), V::load(above[3])), sum);
                sum = V::fma(near_columns, V::add(left, right), sum);
                sum = V::fma(far_columns, V::add(left2, right2), sum);
                V::store(to, V::add(V::load(to), sum));
                left2 = left;
                left = here;
                here = right;
                right = right2;
                at += stride;
                to += stride;
                for (int side = 0; side < 4; ++side) above[side] += near.steps[side];
            };
            const int whole = width - 2 - j < count ? width - 2 - j : count;
            int k = 0;
            for (; k < whole; ++k) next(V::load(at + 2 * stride));
            for (; k < count; ++k) next(zero);
        }
        done += count;
    }
}

}  // namespace
}  // namespace frugalvit
