#!/usr/bin/env bash
# Runs a test binary so that each test's line ends with how long it took. Rust's own harness can,
# but says so on a nightly toolchain alone; the variable is for the binary, so nothing is compiled
# anew because of it.
RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time
