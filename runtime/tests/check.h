// The little that the tests need: a failed check is printed and counted, and main fails where one is, or none was made.
#pragma once

#include <cstdio>
#include <string>

namespace check {

inline int failures = 0;
inline int passed = 0;

inline void that(bool holds, const std::string& what) {
    if (holds) {
        ++passed;
    } else if (++failures <= 20) {
        std::printf("FAILED: %s\n", what.c_str());
    }
}

template <class Error, class Call>
void refuses(Call call, const std::string& part) {
    try {
        call();
        that(false, "accepted: " + part);
    } catch (const Error& error) {
        that(std::string(error.what()).find(part) != std::string::npos,
             "'" + std::string(error.what()) + "' does not say '" + part + "'");
    }
}

inline int result() {
    std::printf("%d checks, %d failed\n", passed + failures, failures);
    return failures || !passed ? 1 : 0;
}

}  // namespace check
