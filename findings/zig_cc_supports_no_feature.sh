#!/usr/bin/env bash
# zig 0.17.1 as a C compiler (the `ziglang` wheel, x86-64 Linux): `__builtin_cpu_supports` answers no for every feature, for SSE2
# too, without which no x86-64 exists; also after `__builtin_cpu_init`. cpuid on the same CPU, read by the same program, says yes.
# Code that chooses its kernels by it takes the slowest ones, without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check ziglang==0.17.1
cat > "$folder/try.c" <<'C'
#include <cpuid.h>
#include <stdio.h>

int main(void)
{
    unsigned a, b, c, d;
    __get_cpuid(1, &a, &b, &c, &d);
    int by_cpuid = (d >> 26) & 1;
    int before = __builtin_cpu_supports("sse2") != 0;
    __builtin_cpu_init();
    int after = __builtin_cpu_supports("sse2") != 0, popcnt = __builtin_cpu_supports("popcnt") != 0;
    printf("sse2 by cpuid %d, by the builtin %d, after its init %d (popcnt %d)\n", by_cpuid, before, after, popcnt);
    return !(by_cpuid == 1 && before == 0 && after == 0 && popcnt == 0);
}
C
echo "zig $("$folder/venv/bin/python" -m ziglang version)"
"$folder/venv/bin/python" -m ziglang cc -O1 "$folder/try.c" -o "$folder/try"
"$folder/try"
