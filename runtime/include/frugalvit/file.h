// The packed file: a safetensors container whose metadata hold a program. See docs/format.md.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "frugalvit/json.h"
#include "frugalvit/memory.h"

namespace frugalvit {

struct Tensor {
    std::string type;  // U64, F32 or F16
    std::vector<std::int64_t> shape;
    std::span<const std::uint8_t> bytes;

    std::int64_t size() const;
    std::string describe() const;
    float real(std::int64_t index) const;          // of F32 or F16
    std::uint64_t word(std::int64_t index) const;  // of U64
};

class PackedFile {
public:
    explicit PackedFile(std::vector<std::uint8_t> bytes);  // throws FileError

    const Json& program() const { return program_; }
    const Tensor& tensor(const std::string& name) const;  // throws FileError where there is none
    std::size_t tensors() const { return tensors_.size(); }

private:
    void read_tensors(const Json& header, std::size_t data_begin);

    std::vector<std::uint8_t> bytes_;
    std::map<std::string, Tensor> tensors_;
    Json program_;
};

std::vector<std::uint8_t> read_bytes(const std::string& path);

// CRC-32 as zlib and PNG have it; `sum` continues an earlier one.
std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t sum = 0);

}  // namespace frugalvit
