// A strict reader of JSON (RFC 8259): no comments, no trailing commas, no repeated keys, no more than 16 levels or 2^20 values,
// and nothing but UTF-8.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace frugalvit {

// A packed file or a picture that cannot be used, and why.
struct FileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Json {
    enum class Kind { null, truth, number, string, array, object };

    Kind kind = Kind::null;
    bool truth = false;
    double number = 0;
    std::string string;
    std::vector<Json> items;
    std::vector<std::pair<std::string, Json>> members;
    std::size_t begin = 0;  // where the value starts in the text

    const Json* find(std::string_view name) const;  // null where the object has no such member
};

Json parse_json(std::string_view text);

}  // namespace frugalvit
