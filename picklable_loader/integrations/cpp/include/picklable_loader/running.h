// What a call from Python gives the code that it runs: seeds, a generator, the worker's number.
#pragma once

// pybind11 then throws where Python objects are touched without the GIL; bound.py explains it.
#ifndef PYBIND11_ASSERT_GIL_HELD_INCREF_DECREF
#ifdef PYBIND11_VERSION_MAJOR
#error "include picklable_loader/torch_data.h before pybind11's and torch's headers, or compile with -DPYBIND11_ASSERT_GIL_HELD_INCREF_DECREF"
#endif
#define PYBIND11_ASSERT_GIL_HELD_INCREF_DECREF
#endif

// pybind11 looks for the GIL before it calls a Python object, but not with NDEBUG. The headers below
// cast.h get NDEBUG as it was: with their assertions the process would end where pybind11 throws.
#ifdef NDEBUG
#include <pybind11/detail/common.h>
#undef NDEBUG
#include <pybind11/cast.h>
#define NDEBUG
#include <cassert>
#endif

#include <torch/data.h>

#include <torch/csrc/utils/pybind.h>

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace picklable_loader {
namespace py = pybind11;

// The functions in Python that this header calls.
inline py::module_ in_python() {
  return py::module_::import("picklable_loader.integrations.cpp.bound");
}

namespace detail {

// One call from Python on this thread. Its seed is read when it is first asked for: reading takes
// the GIL, and most calls draw from torch's global generator, which the loader has seeded.
struct Running {
  std::optional<uint64_t> seed;
  std::optional<at::Generator> generator;
  // with seeding="sample", the seed of each sample of the batch
  std::vector<uint64_t> samples;
  // while torch's loop over get() or apply() makes a batch: which sample it is at
  std::optional<size_t> at;
  // one sample is asked for, not a batch: the seed of the call is the sample's
  bool alone = false;
};

// The seed of the k-th sample of a batch with that seed (splitmix64).
inline uint64_t mixed(uint64_t seed, size_t k) {
  uint64_t bits = seed + (k + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return (bits ^ (bits >> 31)) >> 2;
}

inline thread_local Running* running = nullptr;
// the index whose get() has thrown on this thread, until bound.py asks for it
inline thread_local int64_t failed_index = -1;
// the field of a struct that the newest dict does not have, or not with its type
inline thread_local const char* failed_field = nullptr;

inline Running& here() {
  TORCH_CHECK(
      running,
      "current_seed() and generator() are known on the thread that called into the dataset. "
      "Call them there, and give the seeds to threads of your own");
  return *running;
}

// Calls function() without the GIL, or with it, as the class was bound.
template <typename Function>
auto run(bool hold_gil, Function function, std::vector<uint64_t> samples = {}) {
  struct Scope {
    Running now;
    Running* before = std::exchange(running, &now);
    ~Scope() { running = before; }
  } scope;
  scope.now.samples = std::move(samples);
  std::optional<py::gil_scoped_release> released;
  if (!hold_gil)
    released.emplace();
  return function();
}

// Seeds what a sample draws from, as the loader does before each sample (seeding="sample").
inline void seed_sample(uint64_t seed) {
  running->seed = seed;
  running->generator.reset();
  running->at.reset();
  auto global = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(global.mutex());
  global.set_current_seed(seed);
}

// The seed of this call from Python.
inline uint64_t seed_of_call() {
  auto& call = here();
  if (!call.seed) {
    py::gil_scoped_acquire gil;
    call.seed = in_python().attr("seed")().cast<uint64_t>();
  }
  return *call.seed;
}

} // namespace detail

// The seed of the batch that is being made, for generators of your own. In get() and in the apply()
// of a transform of one sample, it is the sample's.
// Outside of picklable_loader's loader it is drawn from torch's global generator.
inline uint64_t current_seed() {
  const uint64_t seed = detail::seed_of_call();
  const auto at = detail::here().at;
  return at ? detail::mixed(seed, *at) : seed;
}

// The seed of the batch's k-th sample, for a get_batch of your own. With seeding="sample" it
// depends on the sample's position in the epoch only, not on the batch.
inline uint64_t current_seed(size_t k) {
  auto& call = detail::here();
  if (k < call.samples.size())
    return call.samples[k];
  if (call.alone && k == 0)
    return detail::seed_of_call();
  return detail::mixed(detail::seed_of_call(), k);
}

// A generator with the batch's seed (with seeding="sample", the sample's), which no other thread
// draws from and which goes on from sample to sample: torch::rand({2}, generator()).
inline at::Generator generator() {
  auto& call = detail::here();
  if (!call.generator)
    call.generator = at::detail::createCPUGenerator(detail::seed_of_call());
  return *call.generator;
}

inline at::Generator generator(size_t k) {
  return at::detail::createCPUGenerator(current_seed(k));
}

// A tensor for a whole batch. A worker makes it in the memory that it sends, and copies nothing.
inline torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType type = torch::kFloat32) {
  if (!detail::running)
    return torch::empty(sizes, type);
  py::gil_scoped_acquire gil;
  return in_python().attr("empty")(sizes, type).cast<torch::Tensor>();
}

// {id, number of workers} of torch.utils.data.get_worker_info(), {0, 1} in the main process. Each
// worker has the whole stream, and gives its share of it.
inline std::pair<int64_t, int64_t> worker() {
  py::gil_scoped_acquire gil;
  return in_python().attr("worker")().cast<std::pair<int64_t, int64_t>>();
}

} // namespace picklable_loader
