// Smelt's programs from C++: what smelt.h has, with objects that close themselves and failures as exceptions.
//
//     smelt::Model model(my_program, "my.safetensors");
//     smelt::Context context(model, /* threads */ 2);
//     auto outputs = context.call("forward", {smelt::lend(pixels, {1, 784})});
//     const float *scores = outputs[0].as<float>();
#ifndef SMELT_HPP
#define SMELT_HPP

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "smelt.h"

namespace smelt {

// A status that is not SMELT_OK, with its text.
class Error : public std::runtime_error {
public:
    explicit Error(smelt_status found) : std::runtime_error(smelt_error()), status(found) {}
    smelt_status status;
};

inline void check(smelt_status status)
{
    if (status != SMELT_OK)
        throw Error(status);
}

template <typename T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr smelt_dtype value = SMELT_F32; };
template <> struct dtype_of<double> { static constexpr smelt_dtype value = SMELT_F64; };
template <> struct dtype_of<std::int64_t> { static constexpr smelt_dtype value = SMELT_I64; };
template <> struct dtype_of<std::int32_t> { static constexpr smelt_dtype value = SMELT_I32; };
template <> struct dtype_of<std::int16_t> { static constexpr smelt_dtype value = SMELT_I16; };
template <> struct dtype_of<std::int8_t> { static constexpr smelt_dtype value = SMELT_I8; };
template <> struct dtype_of<std::uint8_t> { static constexpr smelt_dtype value = SMELT_U8; };
template <> struct dtype_of<bool> { static constexpr smelt_dtype value = SMELT_BOOL; };

// Elements that somebody else owns: the caller's of an input, the context's of an output.
class Tensor {
public:
    Tensor(void *data, smelt_dtype dtype, std::vector<std::int64_t> sizes) : data_(data), dtype_(dtype), sizes_(std::move(sizes)) {}
    explicit Tensor(const smelt_tensor &found)
        : data_(found.data), dtype_(found.dtype), sizes_(found.sizes, found.sizes + found.ndim),
          strides_(found.strides, found.strides ? found.strides + found.ndim : nullptr)
    {
    }

    // The elements. Throws std::invalid_argument where they are of another type.
    template <typename T> T *as() const
    {
        if (dtype_of<T>::value != dtype_)
            throw std::invalid_argument("the tensor has elements of another type");
        return static_cast<T *>(data_);
    }
    void *data() const { return data_; }
    smelt_dtype dtype() const { return dtype_; }
    const std::vector<std::int64_t> &sizes() const { return sizes_; }
    // Elements from one to the next in each dimension; empty: they lie row by row.
    const std::vector<std::int64_t> &strides() const { return strides_; }

    // As C has it, for as long as this object lives.
    smelt_tensor c() const
    {
        return {data_, dtype_, static_cast<std::int32_t>(sizes_.size()), sizes_.data(),
                strides_.empty() ? nullptr : strides_.data()};
    }

private:
    void *data_;
    smelt_dtype dtype_;
    std::vector<std::int64_t> sizes_, strides_;
};

// Memory of the caller's as an input. A program writes to it only where the input's `is_written` says so.
template <typename T> Tensor lend(const T *data, std::vector<std::int64_t> sizes)
{
    return Tensor(const_cast<T *>(data), dtype_of<T>::value, std::move(sizes));
}

// A program with its weights. Any number of threads may use it.
class Model {
public:
    explicit Model(const smelt_program &program, const std::string &weights = "", int flags = 0) : program_(&program)
    {
        smelt_model *made = nullptr;
        check(smelt_open(&program, weights.empty() ? nullptr : weights.c_str(), flags, &made));
        handle_.reset(made, smelt_close);
    }
    smelt_model *c() const { return handle_.get(); }
    const smelt_program &program() const { return *program_; }

private:
    const smelt_program *program_;
    std::shared_ptr<smelt_model> handle_;
    friend class Context;
};

// State and working memory: one thread at a time. It keeps its model open.
class Context {
public:
    explicit Context(const Model &model, int threads = 1) : model_(model)
    {
        smelt_context *made = nullptr;
        check(smelt_context_new(model.c(), &made));
        handle_.reset(made);
        set_threads(threads);
    }
    void set_threads(int threads) { check(smelt_set_threads(handle_.get(), threads)); }
    void reset() { check(smelt_reset(handle_.get())); }
    void cancel() { smelt_cancel(handle_.get()); }
    Tensor state(const std::string &name)
    {
        smelt_tensor found;
        check(smelt_state(handle_.get(), name.c_str(), &found));
        return Tensor(found);
    }
    // The outputs, valid until the next call.
    std::vector<Tensor> call(const std::string &entry, const std::vector<Tensor> &inputs)
    {
        const std::int32_t number = smelt_find(&model_.program(), entry.c_str());
        if (number < 0)
            throw std::invalid_argument("the program has no entry point " + entry);
        std::vector<smelt_tensor> given, made(smelt_describe(&model_.program(), number)->noutputs);
        for (const Tensor &input : inputs)
            given.push_back(input.c());
        check(smelt_call(handle_.get(), number, given.data(), static_cast<std::int32_t>(given.size()), made.data(),
                         static_cast<std::int32_t>(made.size())));
        return std::vector<Tensor>(made.begin(), made.end());
    }
    smelt_context *c() const { return handle_.get(); }

private:
    struct Free {
        void operator()(smelt_context *context) const { smelt_context_free(context); }
    };
    Model model_;
    std::unique_ptr<smelt_context, Free> handle_;
};

} // namespace smelt
#endif
