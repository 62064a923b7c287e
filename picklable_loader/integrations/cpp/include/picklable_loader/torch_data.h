// Datasets, samplers and transforms of torch::data as picklable Python objects, one line for each:
//
//   PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
//     picklable_loader::bind_dataset<Tiles>(m, "Tiles", picklable_loader::init<torch::Tensor>());
//   }
//
// docs/cpp.md shows how to use it. This header has what needs the C++ types; bound.py completes
// the classes: pickling, states, iteration, and errors in words.
#pragma once

#if __cplusplus < 202002L
#error "picklable_loader/torch_data.h needs C++20: compile with -std=c++20"
#endif

#include <picklable_loader/running.h>
#include <picklable_loader/values.h>

#include <torch/version.h>

#include <array>
#include <concepts>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>

namespace picklable_loader {

// Calls with a user's object name their namespace: that of the object may have such a function, too.
namespace detail {

template <typename T>
concept Stateful = requires(const T& from, T& to, OutputArchive& out, InputArchive& in) {
  from.save(out);
  to.load(in);
};

// It has one of the two, or one that is not for a const object.
template <typename T>
concept SavesOrLoads = requires(T& object, OutputArchive& out) { object.save(out); } ||
    requires(T& object, InputArchive& in) { object.load(in); };

template <typename T>
constexpr bool is_vector = false;
template <typename Item>
constexpr bool is_vector<std::vector<Item>> = true;

// Its get_batch is torch's loop over get().
template <typename T>
concept BySample = requires { typename T::ExampleType; } && requires {
  requires std::same_as<
      decltype(&T::get_batch),
      std::vector<typename T::ExampleType> (
          torch::data::datasets::Dataset<typename T::SelfType, typename T::ExampleType>::*)(
          at::ArrayRef<size_t>)>;
};

// The class that defines a member function.
template <typename Member>
struct Owner;
template <typename Function, typename Class>
struct Owner<Function Class::*> {
  using type = Class;
};
template <typename T>
using OwnerOfGetBatch = typename Owner<decltype(&T::get_batch)>::type;

template <typename T>
constexpr bool is_map = false;
template <typename Source, typename Transform>
constexpr bool is_map<torch::data::datasets::MapDataset<Source, Transform>> = true;
template <typename T>
constexpr bool is_shared = false;
template <typename Source>
constexpr bool is_shared<torch::data::datasets::SharedBatchDataset<Source>> = true;

// Their get_batch is torch's, and not that of a class derived from them.
template <typename T>
concept Mapped = is_map<OwnerOfGetBatch<T>>;
template <typename T>
concept SharedWithOthers = is_shared<OwnerOfGetBatch<T>>;

// The dataset within one of torch's wrappers, or within a class derived from one.
template <typename Source, typename Transform>
Source& within(torch::data::datasets::MapDataset<Source, Transform>& mapped) {
  return const_cast<Source&>(mapped.dataset());
}
template <typename Source>
Source& within(torch::data::datasets::SharedBatchDataset<Source>& shared) {
  return *shared;
}
template <typename T>
concept Wraps = requires(T& object) { detail::within(object); };

// Of a class without members, and so without a position of its own.
template <typename T>
constexpr bool is_memberless = std::is_empty_v<T> || (std::is_polymorphic_v<T> && sizeof(T) == sizeof(void*));

// It has a state, or what torch's map() transforms has, and the transform has none.
template <typename T>
constexpr bool has_state = Stateful<T>;
template <typename Source, typename Transform>
constexpr bool has_state<torch::data::datasets::MapDataset<Source, Transform>> =
    has_state<Source> && is_memberless<Transform>;

// The one with save() and load().
template <typename T>
auto& with_state(T& object) {
  if constexpr (Stateful<T>)
    return object;
  else
    return detail::with_state(detail::within(object));
}

// It has set_epoch(), or what it wraps has; torch's wrappers do not pass it on.
template <typename T>
constexpr bool takes_epoch = [] {
  if constexpr (requires(T& object) { object.set_epoch(size_t{}); })
    return true;
  else if constexpr (Wraps<T>)
    return takes_epoch<std::remove_reference_t<decltype(detail::within(std::declval<T&>()))>>;
  else
    return false;
}();

template <typename T>
void set_epoch(T& object, size_t epoch) {
  if constexpr (requires { object.set_epoch(epoch); })
    object.set_epoch(epoch);
  else
    detail::set_epoch(detail::within(object), epoch);
}

// Its apply_batch is torch's loop over apply().
template <typename T>
concept TransformsEach = requires {
  requires std::same_as<
      decltype(&T::apply_batch),
      std::vector<typename T::OutputType> (
          torch::data::transforms::Transform<typename T::InputType, typename T::OutputType>::*)(
          std::vector<typename T::InputType>)>;
};

template <Mapped T>
using SourceOf = std::remove_cvref_t<decltype(std::declval<T&>().dataset())>;
template <Mapped T>
using TransformOf = std::remove_cvref_t<decltype(std::declval<T&>().transform())>;

// A sample of it can be made alone: get(), and transforms of one sample.
template <typename T>
struct OneByOne : std::bool_constant<BySample<T>> {};
template <Mapped T>
struct OneByOne<T> : std::bool_constant<OneByOne<SourceOf<T>>::value && TransformsEach<TransformOf<T>>> {};
template <SharedWithOthers T>
struct OneByOne<T> : OneByOne<std::remove_cvref_t<decltype(*std::declval<T&>().operator->())>> {};

// Refers to a Python object, which nobody may touch without the GIL; or contains such.
template <typename T>
struct HoldsPython : std::is_base_of<py::handle, T> {};
template <template <typename...> typename Container, typename... Items>
struct HoldsPython<Container<Items...>>
    : std::bool_constant<
          std::is_base_of_v<py::handle, Container<Items...>> ||
          (HoldsPython<std::decay_t<Items>>::value || ...)> {};
template <typename Item, size_t length>
struct HoldsPython<std::array<Item, length>> : HoldsPython<Item> {};
template <typename Argument>
constexpr bool is_python = HoldsPython<std::decay_t<Argument>>::value;

// What it takes from Python and gives back: samples, batches, chunks, indices, collated batches.
template <typename T>
constexpr bool gives_python = [] {
  bool found = false;
  if constexpr (requires { typename T::ExampleType; })
    found |= is_python<typename T::ExampleType>;
  if constexpr (requires { typename T::BatchType; })
    found |= is_python<typename T::BatchType>;
  if constexpr (requires { typename T::ChunkType; })
    found |= is_python<typename T::ChunkType>;
  if constexpr (requires { typename T::BatchRequestType; })
    found |= is_python<typename T::BatchRequestType>;
  if constexpr (requires { typename T::InputBatchType; })
    found |= is_python<typename T::InputBatchType>;
  if constexpr (requires { typename T::OutputBatchType; })
    found |= is_python<typename T::OutputBatchType>;
  return found;
}();

// A function that may be one of Python, or contains such. pybind11 takes the GIL to call it.
template <typename T>
struct HoldsCallback : std::false_type {};
template <template <typename...> typename Container, typename... Items>
struct HoldsCallback<Container<Items...>>
    : std::bool_constant<(HoldsCallback<std::decay_t<Items>>::value || ...)> {};
template <typename Function>
struct HoldsCallback<std::function<Function>> : std::true_type {};

// What a constructor takes.
template <typename... Args>
struct Arguments {
  static constexpr bool python = (is_python<Args> || ...);
  static constexpr bool callback = (HoldsCallback<std::decay_t<Args>>::value || ...);
};

template <typename Result, typename... Args>
Arguments<Args...> arguments_of(const std::function<Result(Args...)>&);

template <typename Takes, typename Init, typename... Extra>
struct Constructor {
  static constexpr bool takes_python = Takes::python;
  static constexpr bool takes_callback = Takes::callback;
  Init init;
  std::tuple<Extra...> extra;

  template <typename T>
  void add_to(py::class_<T>& bound) {
    std::apply([&](auto&... each) { bound.def(std::move(init), each...); }, extra);
  }
};

} // namespace detail

// A constructor with arguments of these types, each with its py::arg.
template <typename... Args, typename... Extra>
auto init(Extra... extra) {
  using Init = decltype(py::init<Args...>());
  return detail::Constructor<detail::Arguments<Args...>, Init, Extra...>{
      py::init<Args...>(), {std::move(extra)...}};
}

// A function in place of a constructor; it returns the object, or a pointer to it.
template <typename Function, typename... Extra>
auto make(Function function, Extra... extra) {
  std::function maker = std::move(function); // pybind11 takes none that is mutable or noexcept
  using Takes = decltype(detail::arguments_of(maker));
  return detail::Constructor<Takes, decltype(py::init(std::move(maker))), Extra...>{
      py::init(std::move(maker)), {std::move(extra)...}};
}

// Among the constructors: the class has Python objects, so it is called with the GIL.
struct hold_gil {
  static constexpr bool takes_python = false, takes_callback = false;
  template <typename T>
  void add_to(py::class_<T>&) {}
};

// The py::class_ of a bound class, for more `.def`.
template <typename T>
class Bound : public py::class_<T> {
 public:
  template <typename... Inits>
  Bound(py::module_& m, const char* name, Inits... inits)
      // other extensions may bind the same class, such as Stack<>
      : py::class_<T>(m, checked(name, inits...), py::dynamic_attr(), py::module_local()),
        holds_gil((std::is_same_v<Inits, hold_gil> || ...)),
        calls_python(holds_gil || (Inits::takes_callback || ...)) {
    static_assert(
        !detail::SavesOrLoads<T> || detail::Stateful<T>,
        "a state needs both: void save(torch::serialize::OutputArchive&) const, and void "
        "load(torch::serialize::InputArchive&)");
    (inits.add_to(*this), ...);
    if constexpr (detail::has_state<T>)
      state(
          [](T& object) { return detail::saved(detail::with_state(object)); },
          [](T& object, const py::dict& state) { detail::load(detail::with_state(object), state); });
    if constexpr (detail::takes_epoch<T>)
      this->def("set_epoch", &detail::set_epoch<T>);
    this->def_static("_failed_index", [] { return std::exchange(detail::failed_index, -1); });
    this->def_static("_failed_field", [] { return std::exchange(detail::failed_field, nullptr); });
  }

  // What save() and load() do for other classes. `get(const T&)` returns a dict, list, number,
  // string, tensor or what pybind11 makes such of; `set(T&, ...)` takes it.
  template <typename Get, typename Set>
  Bound& state(Get get, Set set) {
    // assigned, as `def` would only add an overload to those of save() and load()
    this->attr("_get_state") = py::cpp_function(get, py::is_method(*this));
    this->attr("_set_state") = py::cpp_function(set, py::is_method(*this));
    return *this;
  }

  // `one_by_one`: a batch is a loop over its samples.
  Bound& complete(const char* kind, bool one_by_one = false) {
    in_python().attr("complete")(*this, kind, holds_gil, one_by_one && calls_python);
    return *this;
  }

  const bool holds_gil;
  // its methods may run code in Python, which draws from Python's generators
  const bool calls_python;

 private:
  template <typename... Inits>
  static const char* checked(const char* name, const Inits&...) {
    const bool holds_gil = (std::is_same_v<Inits, hold_gil> || ...);
    const bool takes_python = (Inits::takes_python || ...);
    in_python().attr("check_binding")(
        name, TORCH_VERSION, takes_python && !holds_gil, detail::gives_python<T> && !holds_gil);
    return name;
  }
};

namespace detail {

constexpr size_t longest = std::numeric_limits<int64_t>::max();

inline size_t checked(int64_t index, std::optional<size_t> size) {
  if (size > longest) // it has no end
    size.reset();
  const auto length = static_cast<int64_t>(size.value_or(0));
  const int64_t found = index < 0 ? index + length : index;
  if (found < 0 || (size && found >= length))
    throw py::index_error(
        "index " + std::to_string(index) + " is out of range: the dataset has " +
        (size ? std::to_string(length) : "an unknown number of") + " samples");
  return found;
}

template <typename T>
void def_get(Bound<T>& bound, auto size, auto get) {
  bound.def("_get", [size, get, hold = bound.holds_gil](T& object, int64_t index) {
    // size() as well: it may wait for a mutex that a get() holds, which waits for the GIL
    return run(hold, [&] {
      running->alone = true;
      return get(object, checked(index, size(object)));
    });
  });
}

template <typename T>
void def_len(Bound<T>& bound, auto size) {
  bound.def("__len__", [size, hold = bound.holds_gil](T& object) {
    const std::optional<size_t> length = run(hold, [&] { return size(object); });
    if (!length || *length > longest)
      throw py::type_error("size() is unknown, or has no end, so there is no len()");
    return *length;
  });
}

// The samples of a batch, one after the other; with seeding="sample" each under its own seed.
template <typename T, typename Get>
auto get_each(T& object, const std::vector<size_t>& indices, Get get) {
  std::vector<decltype(get(object, size_t{}))> batch;
  batch.reserve(indices.size());
  for (size_t k = 0; k < indices.size(); ++k) {
    if (!running->samples.empty())
      seed_sample(running->samples.at(k)); // bound.py checks that there are as many
    else if (!running->alone)
      running->at = k;
    try {
      batch.push_back(get(object, indices[k]));
    } catch (...) {
      failed_index = static_cast<int64_t>(indices[k]);
      throw;
    }
  }
  running->at.reset();
  return batch;
}

// get() and apply() of torch's own classes: a class may have made its own private.
template <typename T>
auto get_sample(T& dataset, size_t index) {
  using Own = torch::data::datasets::Dataset<typename T::SelfType, typename T::ExampleType>;
  return static_cast<Own&>(dataset).get(index);
}

template <typename Transform, typename Sample>
auto apply_to(Transform& transform, Sample sample) {
  using Own = torch::data::transforms::Transform<typename Transform::InputType, typename Transform::OutputType>;
  return static_cast<Own&>(transform).apply(std::move(sample));
}

// As torch's apply_batch(), but that each sample has a current_seed() in a transform of one sample.
template <typename Transform, typename Batch>
auto apply_each(Transform& transform, Batch below, const std::vector<size_t>& indices = {}) {
  if constexpr (TransformsEach<Transform>) {
    std::vector<typename Transform::OutputType> batch;
    batch.reserve(below.size());
    for (size_t k = 0; k < below.size(); ++k) {
      if (!running->alone)
        running->at = k;
      try {
        batch.push_back(detail::apply_to<Transform, typename Transform::InputType>(transform, std::move(below[k])));
      } catch (...) {
        if (below.size() == indices.size())
          failed_index = static_cast<int64_t>(indices[k]);
        throw;
      }
    }
    running->at.reset();
    return batch;
  } else {
    return transform.apply_batch(std::move(below));
  }
}

template <typename T>
auto get_one(T& dataset, size_t index) {
  if constexpr (Mapped<T>)
    return detail::apply_to(
        const_cast<TransformOf<T>&>(dataset.transform()),
        detail::get_one(const_cast<SourceOf<T>&>(dataset.dataset()), index));
  else if constexpr (SharedWithOthers<T>)
    return detail::get_one(*dataset.operator->(), index);
  else
    return detail::get_sample(dataset, index);
}

// The samples that the dataset below all transforms of one sample gives.
template <typename T>
auto get_untransformed(T& dataset, std::vector<size_t>& indices);
// One of these, transformed.
template <typename T, typename Sample>
auto transformed(T& dataset, Sample sample);

template <typename Batch>
Batch counted(Batch batch, const std::vector<size_t>& indices);

// The batch at these indices. Torch's wrappers are opened, so that each sample within has its seed.
// Without seeds of samples the order of calls is torch's: transforms come after all gets.
template <typename T>
typename T::BatchType get_batch(T& dataset, std::vector<size_t>& indices) {
  constexpr bool alone = OneByOne<T>::value;
  if constexpr (BySample<T>) {
    return detail::get_each(dataset, indices, get_sample<T>);
  } else if constexpr (Mapped<T>) {
    if constexpr (alone) {
      if (!running->samples.empty())
        return detail::get_each(dataset, indices, get_one<T>);
    } else if constexpr (TransformsEach<TransformOf<T>>) {
      if (!running->samples.empty()) {
        auto below = detail::counted(detail::get_untransformed(dataset, indices), indices);
        size_t k = 0;
        return detail::get_each(
            dataset, indices, [&](T& object, size_t) { return detail::transformed(object, std::move(below[k++])); });
      }
    }
    return detail::apply_each(
        const_cast<TransformOf<T>&>(dataset.transform()),
        detail::get_batch(const_cast<SourceOf<T>&>(dataset.dataset()), indices), indices);
  } else if constexpr (SharedWithOthers<T>) {
    return detail::get_batch(*dataset.operator->(), indices);
  } else {
    return dataset.get_batch(typename T::BatchRequestType(indices));
  }
}

template <typename T>
auto get_untransformed(T& dataset, std::vector<size_t>& indices) {
  if constexpr (SharedWithOthers<T>)
    return detail::get_untransformed(*dataset.operator->(), indices);
  else if constexpr (!Mapped<T>)
    return detail::get_batch(dataset, indices);
  else if constexpr (TransformsEach<TransformOf<T>>)
    return detail::get_untransformed(const_cast<SourceOf<T>&>(dataset.dataset()), indices);
  else
    return detail::get_batch(dataset, indices);
}

template <typename T, typename Sample>
auto transformed(T& dataset, Sample sample) {
  if constexpr (SharedWithOthers<T>)
    return detail::transformed(*dataset.operator->(), std::move(sample));
  else if constexpr (!Mapped<T>)
    return sample;
  else if constexpr (TransformsEach<TransformOf<T>>)
    return detail::apply_to(
        const_cast<TransformOf<T>&>(dataset.transform()),
        detail::transformed(const_cast<SourceOf<T>&>(dataset.dataset()), std::move(sample)));
  else
    return sample;
}

// The next samples of a stream; none at its end, which an empty vector is as well.
template <typename T>
auto next_batch(T& stream, size_t count) {
  if constexpr (Mapped<T>) {
    auto& transform = const_cast<TransformOf<T>&>(stream.transform());
    auto below = detail::next_batch(const_cast<SourceOf<T>&>(stream.dataset()), count);
    bool ended = !below;
    if constexpr (is_vector<std::remove_cvref_t<decltype(*below)>>)
      ended = ended || below->empty(); // many a transform needs a sample, as Stack<> does
    using Batch = decltype(detail::apply_each(transform, std::move(*below)));
    return ended ? std::optional<Batch>() : detail::apply_each(transform, std::move(*below));
  } else {
    return std::optional(stream.get_batch(count)); // one that is an optional already is that
  }
}

// A vector holds the samples, so it has one for each index.
template <typename Batch>
Batch counted(Batch batch, const std::vector<size_t>& indices) {
  if constexpr (is_vector<Batch>)
    TORCH_CHECK_VALUE(
        batch.size() == indices.size(), "get_batch() returns a vector of ", batch.size(),
        " for ", indices.size(), " indices. A vector holds one sample for each index: return a "
        "tuple, an Example or a struct for a whole batch");
  return batch;
}

template <typename T>
void def_get_batch(Bound<T>& bound, auto size, auto get_batch) {
  bound.def("_get_batch", [=, hold = bound.holds_gil](
                              T& object, std::vector<int64_t> asked, std::vector<uint64_t> seeds) {
    auto make = [&] {
      const std::optional<size_t> length = size(object);
      std::vector<size_t> indices(asked.size());
      for (size_t k = 0; k < asked.size(); ++k)
        indices[k] = checked(asked[k], length);
      return detail::counted(get_batch(object, indices), indices);
    };
    return run(hold, make, std::move(seeds));
  });
}

// What a sampler that shares the data out gives its rank: the position may depend on that.
template <typename Request>
struct RankShare : torch::data::samplers::DistributedSampler<Request> {
  static py::dict of(const torch::data::samplers::DistributedSampler<Request>& sampler) {
    return py::dict(
        py::arg("rank") = sampler.*&RankShare::rank_,
        py::arg("num_replicas") = sampler.*&RankShare::num_replicas_,
        py::arg("size") = sampler.*&RankShare::size_,
        py::arg("allow_duplicates") = sampler.*&RankShare::allow_duplicates_);
  }
};

} // namespace detail

// A map-style dataset: Dataset, BatchDataset, MapDataset, SharedBatchDataset. If a batch is a
// vector, its items are the samples; other batches are whole, and pass through every collate_fn.
template <typename T, typename... Inits>
Bound<T> bind_dataset(py::module_& m, const char* name, Inits... inits) {
  using Request = typename T::BatchRequestType;
  static_assert(
      std::is_constructible_v<Request, std::vector<size_t>&>,
      "bind_dataset is for datasets that are asked for indices; bind_stream for a number");
  Bound<T> bound(m, name, std::move(inits)...);
  auto size = [](T& object) { return object.size(); };
  detail::def_len(bound, size);
  detail::def_get_batch(bound, size, detail::get_batch<T>);
  if constexpr (detail::is_vector<typename T::BatchType>)
    detail::def_get(bound, size, [](T& object, size_t index) -> typename T::BatchType::value_type {
      if constexpr (detail::BySample<T>) {
        return detail::get_sample(object, index);
      } else {
        std::vector<size_t> indices{index};
        auto batch = detail::counted(detail::get_batch(object, indices), indices);
        return std::move(batch[0]);
      }
    });
  bound.complete(
      detail::is_vector<typename T::BatchType> ? "dataset" : "batch dataset",
      detail::OneByOne<T>::value);
  return bound;
}

// A ChunkDataReader, as a map-style dataset whose samples are chunks.
template <typename Reader, typename... Inits>
Bound<Reader> bind_chunks(py::module_& m, const char* name, Inits... inits) {
  Bound<Reader> bound(m, name, std::move(inits)...);
  auto size = [](Reader& reader) { return std::optional<size_t>(reader.chunk_count()); };
  auto read = [](Reader& reader, size_t index) { return reader.read_chunk(index); };
  bound.def("_reset", [](Reader& reader) { reader.reset(); });
  detail::def_len(bound, size);
  detail::def_get(bound, size, read);
  detail::def_get_batch(bound, size, [read](Reader& reader, std::vector<size_t>& indices) {
    return detail::get_each(reader, indices, read);
  });
  bound.complete("chunks", true);
  return bound;
}

// A sampler: `sampler=Order(100)`, or `batch_sampler=Order(100).batches(32)`.
template <typename T, typename... Inits>
Bound<T> bind_sampler(py::module_& m, const char* name, Inits... inits) {
  Bound<T> bound(m, name, std::move(inits)...);
  const bool hold = bound.holds_gil;
  bound.def("_reset", [hold](T& object) { detail::run(hold, [&] { object.reset(std::nullopt); }); });
  bound.def("_next", [hold](T& object, size_t count) {
    return detail::run(hold, [&] { return object.next(count); });
  });
  if constexpr (requires { typename T::BatchRequestType; }) {
    using Request = typename T::BatchRequestType;
    if constexpr (std::is_base_of_v<torch::data::samplers::DistributedSampler<Request>, T>)
      bound.def("_rank_share", [](T& object) { return detail::RankShare<Request>::of(object); });
  }
  bound.complete("sampler");
  return bound;
}

// An iterable-style dataset: StatefulDataset, or a StreamDataset, which ends with an empty batch.
template <typename T, typename... Inits>
Bound<T> bind_stream(py::module_& m, const char* name, Inits... inits) {
  static_assert(
      std::is_same_v<typename T::BatchRequestType, size_t>,
      "bind_stream is for datasets that are asked for a number of samples");
  Bound<T> bound(m, name, std::move(inits)...);
  const bool hold = bound.holds_gil;
  detail::def_len(bound, [](T& object) { return object.size(); });
  bound.def("_reset", [hold](T& object) {
    auto reset = [&] {
      if constexpr (requires { object.reset(); })
        object.reset();
    };
    detail::run(hold, reset);
  });
  bound.def("_next", [hold](T& object, size_t count) {
    return detail::run(hold, [&] { return detail::next_batch(object, count); });
  });
  bound.complete("stream");
  return bound;
}

// A BatchTransform, such as Stack<>, as a collate_fn.
template <typename T, typename... Inits>
Bound<T> bind_collate(py::module_& m, const char* name, Inits... inits) {
  using Samples = typename T::InputBatchType;
  Bound<T> bound(m, name, std::move(inits)...);
  bound.def("_apply", [hold = bound.holds_gil](T& object, Samples samples) {
    return detail::run(hold, [&] { return detail::apply_each(object, std::move(samples)); });
  });
  bound.complete("collate");
  return bound;
}

} // namespace picklable_loader
