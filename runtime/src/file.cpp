#include "frugalvit/file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace frugalvit {
namespace {

constexpr std::size_t longest_header = 16u << 20;
constexpr std::int64_t largest_tensor = 1 << 28;  // bytes
constexpr std::size_t largest_file = std::size_t{1} << 30;
constexpr std::size_t checksum_digits = 8;

std::array<std::uint32_t, 256> crc_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xEDB88320u ^ value >> 1 : value >> 1;
        table[i] = value;
    }
    return table;
}

std::int64_t whole(const Json& value, const std::string& where) {
    if (value.kind != Json::Kind::number || value.number != std::floor(value.number) || value.number < 0 || value.number > 9e15)
        throw FileError(where + ": not a whole number from 0 on");
    return static_cast<std::int64_t>(value.number);
}

const Json& member(const Json& object, const std::string& name, Json::Kind kind, const std::string& where) {
    const Json* value = object.kind == Json::Kind::object ? object.find(name) : nullptr;
    if (!value || value->kind != kind) throw FileError(where + ": no '" + name + "' of the right kind");
    return *value;
}

// Other safetensors files have metadata of their own, or none.
void refuse_unpacked(const Json& header) {
    const Json* metadata = header.find("__metadata__");
    const Json* format = metadata ? metadata->find("format") : nullptr;
    if (!format || format->string != "frugalvit-packed")
        throw FileError("not a packed model: its header does not say 'frugalvit-packed'. `frugalvit pack` writes one");
}

void refuse_others(const Json& object, std::initializer_list<std::string_view> known, const std::string& where) {
    for (const auto& [name, _] : object.members)
        if (std::find(known.begin(), known.end(), name) == known.end())
            throw FileError(where + ": unknown name '" + name + "'; written by a newer version?");
}

std::int64_t bytes_per(const std::string& type, const std::string& where) {
    if (type == "U64") return 8;
    if (type == "F32") return 4;
    if (type == "F16") return 2;
    throw FileError(where + ": numbers of type '" + type + "'; known are U64, F32 and F16");
}

// The sum is over the whole file, its own eight digits read as zeros.
void check_sum(std::span<const std::uint8_t> file, const std::string& digits, std::size_t place) {
    std::uint32_t stated = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), stated, 16);
    if (digits.size() != checksum_digits || error != std::errc{} || end != digits.data() + digits.size() ||
        std::memcmp(file.data() + place, digits.data(), checksum_digits) != 0)
        throw FileError("checksum: not eight hexadecimal digits");
    static constexpr std::uint8_t zeros[checksum_digits] = {'0', '0', '0', '0', '0', '0', '0', '0'};
    std::uint32_t sum = crc32(file.first(place));
    sum = crc32(zeros, sum);
    sum = crc32(file.subspan(place + checksum_digits), sum);
    if (sum != stated) throw FileError("checksum: the file is damaged; copy or pack it again");
}

float half_to_float(std::uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    float value;
    if (exponent == 0) value = std::ldexp(static_cast<float>(fraction), -24);
    else if (exponent == 31) value = fraction ? std::nanf("") : INFINITY;
    else value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return half >> 15 ? -value : value;
}

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t sum) {
    static const std::array<std::uint32_t, 256> table = crc_table();
    sum = ~sum;
    for (const std::uint8_t byte : bytes) sum = table[(sum ^ byte) & 255] ^ sum >> 8;
    return ~sum;
}

std::int64_t Tensor::size() const {
    std::int64_t product = 1;
    for (const std::int64_t side : shape) product *= side;
    return product;
}

std::string Tensor::describe() const {
    std::string text = type + " [";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

float Tensor::real(std::int64_t index) const {
    if (type == "F16") {
        std::uint16_t half;
        std::memcpy(&half, bytes.data() + index * 2, 2);
        return half_to_float(half);
    }
    float value;
    std::memcpy(&value, bytes.data() + index * 4, 4);
    return value;
}

std::uint64_t Tensor::word(std::int64_t index) const {
    std::uint64_t value;
    std::memcpy(&value, bytes.data() + index * 8, 8);
    return value;
}

PackedFile::PackedFile(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {
    std::uint64_t header_size = 0;
    if (bytes_.size() < 8) throw FileError("not a packed model: shorter than 8 bytes");
    std::memcpy(&header_size, bytes_.data(), 8);
    if (header_size > longest_header || header_size > bytes_.size() - 8)
        throw FileError("not a packed model, or cut off. `frugalvit pack` writes one");
    const Json header = parse_json({reinterpret_cast<const char*>(bytes_.data()) + 8, static_cast<std::size_t>(header_size)});
    refuse_unpacked(header);
    const Json& metadata = member(header, "__metadata__", Json::Kind::object, "header");
    const auto text = [&](const std::string& name) -> const Json& {
        return member(metadata, name, Json::Kind::string, "metadata");
    };
    if (text("version").string != "1")
        throw FileError("version: '" + text("version").string + "' is not known; this program reads version 1");
    refuse_others(metadata, {"format", "version", "checksum", "program"}, "metadata");
    const Json& checksum = text("checksum");
    if (8 + checksum.begin + 1 + checksum_digits > bytes_.size()) throw FileError("checksum: not eight hexadecimal digits");
    check_sum(bytes_, checksum.string, 8 + checksum.begin + 1);
    program_ = parse_json(text("program").string);
    read_tensors(header, 8 + static_cast<std::size_t>(header_size));
}

void PackedFile::read_tensors(const Json& header, std::size_t data_begin) {
    const auto data = std::span<const std::uint8_t>(bytes_).subspan(data_begin);
    std::vector<std::pair<std::int64_t, std::int64_t>> extents;
    for (const auto& [name, entry] : header.members) {
        if (name == "__metadata__") continue;
        const std::string where = "tensor '" + name + "'";
        Tensor tensor;
        tensor.type = member(entry, "dtype", Json::Kind::string, where).string;
        std::int64_t size = bytes_per(tensor.type, where);
        for (const Json& side : member(entry, "shape", Json::Kind::array, where).items) {
            tensor.shape.push_back(whole(side, where + ", shape"));
            if (tensor.shape.back() == 0 || tensor.shape.back() > largest_tensor / size)
                throw FileError(where + ": a side of 0, or more than 2^28 bytes");
            size *= tensor.shape.back();
        }
        const Json& offsets = member(entry, "data_offsets", Json::Kind::array, where);
        refuse_others(entry, {"dtype", "shape", "data_offsets"}, where);
        if (offsets.items.size() != 2) throw FileError(where + ": offsets are not a pair");
        const std::int64_t begin = whole(offsets.items[0], where), end = whole(offsets.items[1], where);
        if (begin > end || end > static_cast<std::int64_t>(data.size()) || end - begin != size)
            throw FileError(where + ": " + tensor.describe() + " does not lie at " + std::to_string(begin) + " to " +
                            std::to_string(end) + " of " + std::to_string(data.size()) + " bytes");
        tensor.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
        extents.emplace_back(begin, end);
        tensors_.emplace(name, std::move(tensor));
    }
    std::sort(extents.begin(), extents.end());
    std::int64_t covered = 0;
    for (const auto& [begin, end] : extents) {
        if (begin != covered) throw FileError("tensors overlap or leave a gap at byte " + std::to_string(covered));
        covered = end;
    }
    if (covered != static_cast<std::int64_t>(data.size())) throw FileError("bytes after the last tensor");
}

const Tensor& PackedFile::tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw FileError("there is no tensor '" + name + "'");
    return found->second;
}

std::vector<std::uint8_t> read_bytes(const std::string& path) {
    std::error_code unknown;
    if (std::filesystem::is_directory(path, unknown)) throw FileError(path + ": is a folder");
    std::ifstream file(path, std::ios::binary);
    if (!file) throw FileError(path + ": cannot be opened");
    const std::uintmax_t size = std::filesystem::file_size(path, unknown);
    const auto refuse_large = [&](std::uintmax_t count) {
        if (count > largest_file) throw FileError(path + ": more than 2^30 bytes");
    };
    if (!unknown) refuse_large(size);
    // A pipe does not say how much will come. With a byte more than a file's size, one reading finds its end.
    std::vector<std::uint8_t> bytes(unknown ? 1 << 16 : size + 1);
    std::size_t filled = 0;
    while (file.read(reinterpret_cast<char*>(bytes.data() + filled), static_cast<std::streamsize>(bytes.size() - filled))) {
        filled = bytes.size();
        refuse_large(filled);
        bytes.resize(std::min(2 * filled, largest_file + 1));
    }
    if (file.bad()) throw FileError(path + ": cannot be read");
    bytes.resize(filled + static_cast<std::size_t>(file.gcount()));
    return bytes;
}

}  // namespace frugalvit
