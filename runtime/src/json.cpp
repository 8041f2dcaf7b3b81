#include "frugalvit/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace frugalvit {
namespace {

constexpr int deepest = 16;
constexpr int most_values = 1 << 20;

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Json document() {
        Json value = parse(0);
        skip_space();
        if (at_ != text_.size()) fail("text after the end");
        return value;
    }

private:
    [[noreturn]] void fail(const char* what) const {
        throw FileError("JSON: " + std::string(what) + " at byte " + std::to_string(at_));
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
            ++at_;
    }

    void expect(char wanted) {
        if (peek() != wanted) fail("something unexpected");
        ++at_;
    }

    void literal(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) fail("something unexpected");
        at_ += word.size();
    }

    Json parse(int depth) {
        if (depth > deepest) fail("more than 16 levels");
        if (++values_ > most_values) fail("more than 2^20 values");
        skip_space();
        Json value;
        value.begin = at_;
        switch (peek()) {
            case '{': object(value, depth); break;
            case '[': array(value, depth); break;
            case '"':
                value.kind = Json::Kind::string;
                value.string = string();
                break;
            case 't':
                literal("true");
                value.kind = Json::Kind::truth;
                value.truth = true;
                break;
            case 'f':
                literal("false");
                value.kind = Json::Kind::truth;
                break;
            case 'n': literal("null"); break;
            default: number(value);
        }
        return value;
    }

    void object(Json& value, int depth) {
        value.kind = Json::Kind::object;
        expect('{');
        skip_space();
        if (peek() == '}') {
            ++at_;
            return;
        }
        while (true) {
            skip_space();
            std::string name = string();
            skip_space();
            expect(':');
            value.members.emplace_back(std::move(name), parse(depth + 1));
            skip_space();
            if (peek() != ',') break;
            ++at_;
        }
        expect('}');
        refuse_repeated(value);
    }

    void refuse_repeated(const Json& value) const {
        std::vector<std::string_view> names;
        for (const auto& [name, _] : value.members) names.push_back(name);
        std::sort(names.begin(), names.end());
        if (std::adjacent_find(names.begin(), names.end()) != names.end()) fail("a repeated name in an object that ends");
    }

    void array(Json& value, int depth) {
        value.kind = Json::Kind::array;
        expect('[');
        skip_space();
        if (peek() == ']') {
            ++at_;
            return;
        }
        while (true) {
            value.items.push_back(parse(depth + 1));
            skip_space();
            if (peek() != ',') break;
            ++at_;
        }
        expect(']');
    }

    bool digit() const { return peek() >= '0' && peek() <= '9'; }

    void digits() {
        if (!digit()) fail("something that is no number");
        while (digit()) ++at_;
    }

    void number(Json& value) {
        const std::size_t start = at_;
        if (peek() == '-') ++at_;
        if (peek() == '0') ++at_;
        else digits();
        if (peek() == '.') {
            ++at_;
            digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '+' || peek() == '-') ++at_;
            digits();
        }
        value.kind = Json::Kind::number;
        const auto [end, error] = std::from_chars(text_.data() + start, text_.data() + at_, value.number);
        if (error != std::errc{} || end != text_.data() + at_ || !std::isfinite(value.number)) fail("a number out of range");
    }

    unsigned hex4() {
        unsigned code = 0;
        const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + std::min(at_ + 4, text_.size()), code, 16);
        if (error != std::errc{} || end != text_.data() + at_ + 4) fail("a broken \\u escape");
        at_ += 4;
        return code;
    }

    void escape(std::string& out) {
        const char mark = peek();
        ++at_;
        switch (mark) {
            case '"':
            case '\\':
            case '/': out += mark; return;
            case 'b': out += '\b'; return;
            case 'f': out += '\f'; return;
            case 'n': out += '\n'; return;
            case 'r': out += '\r'; return;
            case 't': out += '\t'; return;
            case 'u': break;
            default: fail("an unknown escape");
        }
        unsigned code = hex4();
        if (code >= 0xD800 && code < 0xDC00) {
            literal("\\u");
            const unsigned low = hex4();
            if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code < 0xE000) {
            fail("half of a surrogate pair");
        }
        append_utf8(out, code);
    }

    static void append_utf8(std::string& out, unsigned code) {
        const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xC0 | code >> 6);
            tail(0);
        } else if (code < 0x10000) {
            out += static_cast<char>(0xE0 | code >> 12);
            tail(6), tail(0);
        } else {
            out += static_cast<char>(0xF0 | code >> 18);
            tail(12), tail(6), tail(0);
        }
    }

    // A character of several bytes (RFC 3629), of which the first has been read.
    void wide_character(std::string& out, unsigned char lead) {
        const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        static constexpr unsigned least[] = {0, 0x80, 0x800, 0x10000};
        unsigned code = lead & (0x3F >> more);
        for (int i = 0; i < more; ++i, ++at_) {
            const auto next = static_cast<unsigned char>(peek());
            if (next >> 6 != 2) fail("bytes that are not UTF-8");
            code = code << 6 | (next & 0x3F);
        }
        if (lead < 0xC0 || lead > 0xF7 || code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            fail("bytes that are not UTF-8");
        append_utf8(out, code);
    }

    std::string string() {
        expect('"');
        std::string out;
        while (true) {
            if (at_ >= text_.size()) fail("a string that does not end");
            const char next = text_[at_++];
            if (next == '"') return out;
            if (static_cast<unsigned char>(next) < 0x20) fail("a control character in a string");
            if (next == '\\') escape(out);
            else if (static_cast<unsigned char>(next) >= 0x80) wide_character(out, static_cast<unsigned char>(next));
            else out += next;
        }
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int values_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
    for (const auto& [key, value] : members)
        if (key == name) return &value;
    return nullptr;
}

Json parse_json(std::string_view text) { return Parser(text).document(); }

}  // namespace frugalvit
