/* SLOW is defined where a sanitizer makes the long property tests too slow to be worth their time. */
#ifndef TESTS_SLOW_BUILD_H
#define TESTS_SLOW_BUILD_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif

#endif
