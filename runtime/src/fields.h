// Reading the members of a JSON object, strictly.
#pragma once

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "frugalvit/json.h"

namespace frugalvit {

// An object of the program: every member must be asked for, and none may be left over.
class Fields {
public:
    Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
        if (object.kind != Json::Kind::object) fail("not an object");
    }

    [[noreturn]] void fail(const std::string& what) const { throw FileError("program, " + where_ + ": " + what); }

    const Json* optional(const std::string& name, Json::Kind kind) {
        asked_.insert(name);
        const Json* value = object_.find(name);
        if (value && value->kind != kind) fail("'" + name + "' is of the wrong kind");
        return value;
    }

    const Json& get(const std::string& name, Json::Kind kind) {
        const Json* value = optional(name, kind);
        if (!value) fail("no '" + name + "'");
        return *value;
    }

    std::string text(const std::string& name) { return get(name, Json::Kind::string).string; }
    double number(const std::string& name) { return get(name, Json::Kind::number).number; }
    const std::vector<Json>& list(const std::string& name) { return get(name, Json::Kind::array).items; }
    Fields object(const std::string& name) { return {get(name, Json::Kind::object), where_ + "." + name}; }
    int whole(const std::string& name, int least, int most) { return whole(get(name, Json::Kind::number), name, least, most); }

    int whole(const Json& value, const std::string& name, int least, int most) const {
        if (value.kind != Json::Kind::number || value.number != std::floor(value.number) || value.number < least ||
            value.number > most)
            fail("'" + name + "' is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
        return static_cast<int>(value.number);
    }

    void done() const {
        for (const auto& [name, _] : object_.members)
            if (!asked_.contains(name)) fail("unknown name '" + name + "'");
    }

private:
    const Json& object_;
    std::string where_;
    std::set<std::string> asked_;
};

}  // namespace frugalvit
