// The same as embed.c for one sentence, in C++: embed_cpp build/minilm.safetensors 101 7592 102
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "minilm.h"
#include "smelt.hpp"

int main(int argc, char **argv)
try {
    if (argc < 3 || argc > 66) {
        std::fprintf(stderr, "usage: %s minilm.safetensors TOKEN...\n", argv[0]);
        return 2;
    }
    const std::int64_t tokens = argc - 2;
    std::vector<std::int64_t> ids, mask(tokens, 1);
    for (int i = 2; i < argc; i++)
        ids.push_back(std::atoll(argv[i]));
    smelt::Model model(minilm_program, argv[1]);
    smelt::Context context(model);
    const auto outputs = context.call("forward", {smelt::lend(ids.data(), {1, tokens}), smelt::lend(mask.data(), {1, tokens})});
    for (int i = 0; i < 4; i++)
        std::printf("%.6f\n", outputs[0].as<float>()[i]);
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
