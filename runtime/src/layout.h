// From tensors in the file's order to the order of the kernels.
#pragma once

#include "frugalvit/file.h"
#include "frugalvit/kernels.h"

namespace frugalvit {

void lay_panels(BinaryWeights&, int words_per_row);
Array<float> padded_rows(const Tensor&, int rows, int columns, float padding);
Real real_panels(const Tensor& weight, const Tensor& bias);
// Fills the `ordered` parameters of an MLP.
void order_hidden(Mlp&);
// exp(-2 * scale * m) as a product of two tables of 16.
void fill_exponentials(Attention&, double scale);

}  // namespace frugalvit
