// One extension for all tests: it takes most of a minute to build.
#include <picklable_loader/torch_data.h>

#include <pybind11/functional.h>
#include <pybind11/operators.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <variant>

namespace data = torch::data;
namespace pl = picklable_loader;
using data::Example;

namespace {

// Rows of numbers with noise from torch's global generator and from ours.
struct Rows : data::datasets::Dataset<Rows> {
  Rows(torch::Tensor values, double noise) : values(std::move(values)), noise(noise) {}
  Example<> get(size_t index) override {
    const double value = values[index].item<double>();
    TORCH_CHECK_VALUE(value >= 0, "a negative value");
    TORCH_CHECK(value < 1000, "a great value");
    if (value == 777)
      throw 777;
    if (value == 666)
      std::raise(SIGSEGV);
    auto global = torch::rand({2}, torch::kFloat64);
    auto ours = torch::rand({2}, pl::generator(), torch::kFloat64);
    return {values[index] + noise * torch::cat({global, ours}), torch::tensor(int64_t(index))};
  }
  std::optional<size_t> size() const override { return values.size(0); }
  torch::Tensor values;
  double noise;
};

// Makes its batch at once, in one loop, with a generator of its own for each sample.
struct Loops : data::datasets::BatchDataset<Loops, Example<>> {
  explicit Loops(torch::Tensor values) : values(values.contiguous()) {}
  Example<> get_batch(at::ArrayRef<size_t> indices) override {
    const int64_t count = indices.size();
    auto out = pl::empty({count, 2}, torch::kFloat64), which = torch::empty({count}, torch::kInt64);
    auto* numbers = out.data_ptr<double>();
    for (int64_t k = 0; k < count; ++k) {
      std::mt19937 engine(pl::current_seed(k));
      numbers[2 * k] = values.const_data_ptr<double>()[indices[k]];
      numbers[2 * k + 1] = std::uniform_real_distribution<>()(engine);
      which.data_ptr<int64_t>()[k] = indices[k];
    }
    return {out, which};
  }
  std::optional<size_t> size() const override { return values.size(0); }
  torch::Tensor values;
};

using Stacked = data::datasets::MapDataset<Rows, data::transforms::Stack<>>;
using Shared = data::datasets::SharedBatchDataset<Rows>;

struct Sample {
  torch::Tensor image;
  int64_t label;
  std::string name;
};

struct Samples : data::datasets::Dataset<Samples, Sample> {
  explicit Samples(int64_t length) : length(length) {}
  Sample get(size_t index) override {
    return {torch::full({2}, double(index)), int64_t(index % 3), "sample " + std::to_string(index)};
  }
  std::optional<size_t> size() const override { return length; }
  int64_t length;
};

struct Unknown {};

struct Unnamed : data::datasets::Dataset<Unnamed, Unknown> {
  Unknown get(size_t) override { return {}; }
  std::optional<size_t> size() const override { return std::nullopt; }
};

// Remembers in a Python object, so it is called with the GIL.
struct Calls : data::datasets::Dataset<Calls, data::TensorExample> {
  explicit Calls(py::function function) : function(std::move(function)) {}
  data::TensorExample get(size_t index) override {
    return torch::tensor(function(index).cast<double>());
  }
  std::optional<size_t> size() const override { return 10; }
  py::function function;
};

// Nobody sees that it has a Python object: no constructor takes one.
struct Sneaky : Calls {
  Sneaky() : Calls(py::module_::import("math").attr("sqrt")) {}
  data::TensorExample get(size_t index) override {
    auto mine = function;
    return torch::tensor(mine(index).cast<double>());
  }
};

// The same in the ways in which code touches Python; `how` says which.
struct Touches : data::datasets::Dataset<Touches, data::TensorExample> {
  explicit Touches(std::string how)
      : how(std::move(how)), function(py::module_::import("math").attr("sqrt")) {}
  data::TensorExample get(size_t index) override {
    if (how == "a call")
      return torch::tensor(function(index).cast<double>());
    if (how == "a copy")
      py::object mine = function;
    function = py::none();
    return torch::tensor(0);
  }
  std::optional<size_t> size() const override { return 10; }
  std::string how;
  py::object function;
};

// Its samples are Python objects.
struct Dicts : data::datasets::Dataset<Dicts, py::dict> {
  py::dict get(size_t index) override {
    py::dict sample;
    sample["index"] = index;
    return sample;
  }
  std::optional<size_t> size() const override { return 10; }
};

struct GivesLists : data::samplers::Sampler<std::vector<py::list>> {
  void reset(std::optional<size_t>) override {}
  std::optional<std::vector<py::list>> next(size_t) override { return std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

struct CollatesDicts : data::transforms::Collation<torch::Tensor, std::vector<py::dict>> {
  torch::Tensor apply_batch(std::vector<py::dict> batch) override {
    return torch::tensor(int64_t(batch.size()));
  }
};

struct CollatesToUnknown : data::transforms::Collation<Unknown, std::vector<Example<>>> {
  Unknown apply_batch(std::vector<Example<>>) override { return {}; }
};

// Calls a function that may be one of Python, and is called without hold_gil().
struct Callback : data::datasets::Dataset<Callback, data::TensorExample> {
  explicit Callback(std::vector<std::function<double(int64_t)>> functions)
      : functions(std::move(functions)) {}
  data::TensorExample get(size_t index) override {
    return torch::tensor(functions.at(0)(index), torch::kFloat64);
  }
  std::optional<size_t> size() const override { return 8; }
  std::vector<std::function<double(int64_t)>> functions;
};

// A permutation by a generator of its own, which goes on from epoch to epoch.
struct Shuffled : data::samplers::Sampler<> {
  Shuffled(int64_t length, int64_t seed) : length(length), engine(seed) {}
  void reset(std::optional<size_t>) override {
    order.resize(length);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine);
    at = 0;
  }
  std::optional<std::vector<size_t>> next(size_t count) override {
    if (at >= order.size())
      return std::nullopt;
    const size_t end = std::min(at + count, order.size());
    std::vector<size_t> taken(order.begin() + at, order.begin() + end);
    at = end;
    return taken;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    std::ostringstream text;
    text << engine;
    archive.write("engine", c10::IValue(text.str()));
    archive.write("at", c10::IValue(int64_t(at)));
    archive.write("order", c10::IValue(std::vector<int64_t>(order.begin(), order.end())));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("engine", value);
    std::istringstream(value.toStringRef()) >> engine;
    archive.read("at", value);
    at = value.toInt();
    archive.read("order", value);
    auto read = value.toIntVector();
    order.assign(read.begin(), read.end());
  }
  int64_t length;
  std::mt19937_64 engine;
  std::vector<size_t> order;
  size_t at = 0;
};

// Its save() and load() need what reset() makes.
struct NeedsReset : Shuffled {
  using Shuffled::Shuffled;
  void reset(std::optional<size_t> size) override {
    Shuffled::reset(size);
    is_reset = true;
    torch::rand({}); // as a sampler may
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    TORCH_CHECK(is_reset, "reset() comes first");
    Shuffled::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    TORCH_CHECK(is_reset, "reset() comes first");
    Shuffled::load(archive);
  }
  bool is_reset = false;
};

// Shares the data out in an order of its own; its position is the index itself.
struct OwnShare : data::samplers::DistributedSampler<> {
  using DistributedSampler::DistributedSampler;
  void reset(std::optional<size_t>) override { at = rank_; }
  std::optional<std::vector<size_t>> next(size_t count) override {
    std::vector<size_t> taken;
    for (; taken.size() < count && at < size_; at += num_replicas_)
      taken.push_back(at);
    return taken.empty() ? std::nullopt : std::optional(taken);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("at", c10::IValue(int64_t(at)));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("at", value);
    at = value.toInt();
  }
  size_t at = 0;
};

// No states: bind_... refuses to compile them.
struct SavesIfNotConst {
  void save(torch::serialize::OutputArchive&) {}
  void load(torch::serialize::InputArchive&) {}
};
struct SavesOnly {
  void save(torch::serialize::OutputArchive&) const {}
};
template <typename T>
concept Refused = pl::detail::SavesOrLoads<T> && !pl::detail::Stateful<T>;
static_assert(Refused<SavesIfNotConst> && Refused<SavesOnly>);
static_assert(!Refused<Shuffled> && !Refused<Rows>);

// As it is often written: the order is not saved.
struct Forgetful : Shuffled {
  using Shuffled::Shuffled;
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("at", c10::IValue(int64_t(at)));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("at", value);
    at = value.toInt();
  }
};

// Numbers with noise; each worker gives its share. Its state has every kind of entry.
template <typename Self>
struct Numbers : data::datasets::StatefulDataset<Self, std::vector<data::TensorExample>> {
  explicit Numbers(int64_t length) : length(length) {}
  void reset() override {
    std::tie(at, step) = pl::worker();
    recent.clear();
  }
  std::optional<std::vector<data::TensorExample>> get_batch(size_t count) override {
    std::vector<data::TensorExample> batch;
    for (; batch.size() < count && at < length; at += step) {
      recent.assign(1, torch::rand({}) + at);
      batch.emplace_back(recent[0].clone());
    }
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::serialize::OutputArchive inner;
    inner.write("at", torch::tensor(at));
    archive.write("position", inner);
    archive.write("step", c10::IValue(step));
    archive.write("recent", c10::IValue(recent));
    archive.write("flags", c10::IValue(c10::List<bool>({true, false})));
    archive.write("names", c10::IValue(std::vector<std::string>{}));
    archive.write("rates", c10::IValue(std::vector<double>{0.5}));
    archive.write("rate", c10::IValue(0.25));
    archive.write("open", c10::IValue(true));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::serialize::InputArchive inner;
    torch::Tensor tensor;
    archive.read("position", inner);
    inner.read("at", tensor);
    at = tensor.item<int64_t>();
    c10::IValue value;
    archive.read("step", value);
    step = value.toInt();
    archive.read("recent", value);
    recent = value.toTensorVector();
    archive.read("flags", value);
    TORCH_CHECK(value.toBoolList().get(0));
    archive.read("names", value);
    TORCH_CHECK(value.toList().empty());
    archive.read("rates", value);
    TORCH_CHECK(value.toDoubleVector()[0] == 0.5);
    archive.read("rate", value);
    TORCH_CHECK(value.toDouble() == 0.25);
    archive.read("open", value);
    TORCH_CHECK(value.toBool());
  }
  int64_t length, at = 0, step = 1;
  std::vector<torch::Tensor> recent;
};

struct Stream : Numbers<Stream> {
  using Numbers::Numbers;
};

// Has no save and load; its position is what `.state` says. It ends with an empty batch.
struct Counter : data::datasets::StreamDataset<Counter> {
  explicit Counter(int64_t length) : length(length) {}
  void reset() { at = 0; }
  std::vector<Example<>> get_batch(size_t count) override {
    std::vector<Example<>> batch;
    for (; batch.size() < count && at < length; ++at)
      batch.emplace_back(torch::tensor(at), torch::rand({}));
    return batch;
  }
  std::optional<size_t> size() const override { return length; }
  int64_t length, at = 0;
};

// The same, and nobody says how to save it.
struct Opaque : Counter {
  using Counter::Counter;
};

struct Chunks : data::datasets::ChunkDataReader<Example<>> {
  Chunks(int64_t count, int64_t length) : count(count), length(length) {}
  std::vector<Example<>> read_chunk(size_t index) override {
    TORCH_CHECK(is_reset, "reset() comes first");
    std::vector<Example<>> chunk;
    for (int64_t row = 0; row < length; ++row)
      chunk.emplace_back(torch::tensor(int64_t(index)), torch::rand({}));
    return chunk;
  }
  size_t chunk_count() override { return count; }
  void reset() override { is_reset = true; }
  int64_t count, length;
  bool is_reset = false;
};

// --- what a user may well write, and what may go wrong with it ------------------------------------

// A number of an engine of its own, and one of our generator.
struct Engines : data::datasets::Dataset<Engines> {
  explicit Engines(std::vector<int64_t> numbers) : numbers(std::move(numbers)) {}
  Example<> get(size_t) override {
    std::mt19937 engine(pl::current_seed());
    const double mine = std::uniform_real_distribution<>()(engine);
    return {torch::tensor(mine), torch::rand({}, pl::generator())};
  }
  std::optional<size_t> size() const override { return numbers.size(); }
  std::vector<int64_t> numbers;
};

// A random transform of one sample.
struct Jitter : data::transforms::Transform<Example<>, Example<>> {
  Example<> apply(Example<> sample) override {
    return {sample.data + torch::rand({2}, torch::kFloat64).repeat(2), sample.target};
  }
};

using Jittered = data::datasets::MapDataset<Rows, Jitter>;

// Has a get_batch of its own. Its vector is short where an index is negative in `values`.
struct OwnBatches : Jittered {
  explicit OwnBatches(torch::Tensor values) : Jittered(Rows(values, 0), {}), values(values) {}
  std::vector<Example<>> get_batch(at::ArrayRef<size_t> indices) override {
    std::vector<Example<>> batch;
    for (size_t index : indices)
      if (values[index].item<double>() >= 0)
        batch.emplace_back(values[index] + 1000, torch::tensor(int64_t(index)));
    return batch;
  }
  torch::Tensor values;
};

struct Throws : data::datasets::Dataset<Throws, data::TensorExample> {
  explicit Throws(std::string what) : what(std::move(what)) {}
  data::TensorExample get(size_t index) override {
    if (index == 3 && what == "stop")
      throw py::stop_iteration("stop");
    if (index == 3)
      throw std::runtime_error("\xff bad bytes");
    return torch::tensor(int64_t(index));
  }
  std::optional<size_t> size() const override { return 6; }
  std::string what;
};

// size() waits for a get(), which asks for a seed.
struct Locked : data::datasets::Dataset<Locked, data::TensorExample> {
  data::TensorExample get(size_t) override {
    std::lock_guard<std::mutex> lock(*mutex);
    std::this_thread::sleep_for(std::chrono::milliseconds(2)); // while the other waits
    return torch::tensor(int64_t(pl::current_seed() % 2));
  }
  std::optional<size_t> size() const override {
    std::lock_guard<std::mutex> lock(*mutex);
    return 100;
  }
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
};

// Its constructor draws the order; its state is a member, which it changes in place.
struct Shards : data::datasets::StreamDataset<Shards> {
  explicit Shards(int64_t length) : order(torch::randperm(length)) {}
  void reset() { at = torch::tensor({pl::worker().first, pl::worker().second}); }
  std::vector<Example<>> get_batch(size_t count) override {
    std::vector<Example<>> batch;
    for (; batch.size() < count && at[0].item<int64_t>() < order.size(0); at[0] += at[1])
      batch.emplace_back(order[at[0].item<int64_t>()].clone(), torch::rand({}, pl::generator()));
    return batch;
  }
  std::optional<size_t> size() const override { return order.size(0); }
  torch::Tensor order, at = torch::tensor({0, 1});
};

// Its save() writes what `entry` says.
struct Writes : Forgetful {
  explicit Writes(std::string entry) : Forgetful(10, 1), entry(std::move(entry)) {}
  void save(torch::serialize::OutputArchive& archive) const override {
    if (entry == "lists")
      archive.write("mine", c10::IValue(c10::List<std::vector<int64_t>>({{1, 2}})));
    else if (entry == "optional")
      archive.write("mine", c10::IValue(c10::List<std::optional<torch::Tensor>>({torch::ones({1})})));
    else if (entry == "bytes")
      archive.write("mine", c10::IValue(std::string("\xff\x00\x01", 3)));
    else
      archive.write(entry, c10::IValue(1));
  }
  bool operator==(const Writes& other) const { return entry == other.entry; }
  std::string entry;
};

// Its get_batch asks for the seed of each sample.
struct OwnSeeds : data::datasets::BatchDataset<OwnSeeds, std::vector<Example<>>> {
  explicit OwnSeeds(std::vector<double> values) : values(std::move(values)) {}
  std::vector<Example<>> get_batch(at::ArrayRef<size_t> indices) override {
    std::vector<Example<>> batch;
    for (size_t k = 0; k < indices.size(); ++k) {
      TORCH_CHECK_VALUE(values[indices[k]] >= 0, "a negative value");
      batch.emplace_back(
          torch::tensor(std::vector<int64_t>{int64_t(pl::current_seed(k)), pl::generator(k).current_seed() > 0}),
          torch::tensor(values[indices[k]]));
    }
    return batch;
  }
  std::optional<size_t> size() const override { return values.size(); }
  std::vector<double> values;
};

// Asks for its seed within get(), below a transform of one sample.
struct Same : data::transforms::Transform<Example<>, Example<>> {
  Example<> apply(Example<> sample) override {
    return {sample.data, torch::tensor(int64_t(pl::current_seed()))};
  }
};
using Mapped = data::datasets::MapDataset<Engines, Same>;

// A random transform of one sample, above a get_batch of its own.
struct Noise : data::transforms::Transform<Example<>, Example<>> {
  Example<> apply(Example<> sample) override {
    TORCH_CHECK_VALUE(sample.target.item<double>() < 100, "a great value");
    auto mine = torch::rand({}, pl::generator(), torch::kFloat64);
    return {torch::cat({sample.data.to(torch::kFloat64), (torch::rand({}, torch::kFloat64) + mine).view(1)}),
            sample.target};
  }
};
using Noised = data::datasets::MapDataset<OwnSeeds, Noise>;
using NoisedTwice = data::datasets::MapDataset<data::datasets::SharedBatchDataset<Noised>, Noise>;

// A sampler or stream with a fault: `how` says which.
void save_or_not(const std::string& how, int64_t at, torch::serialize::OutputArchive& archive) {
  TORCH_CHECK(how != "throws", "not implemented");
  if (how != "empty")
    archive.write(how == "keyword" ? "in" : "at", c10::IValue(at));
}

struct OddSampler : Forgetful {
  explicit OddSampler(std::string how) : Forgetful(12, 1), how(std::move(how)) {}
  std::optional<std::vector<size_t>> next(size_t count) override {
    return Forgetful::next(count + 2 * (how == "greedy"));
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    save_or_not(how, at, archive);
  }
  void load(torch::serialize::InputArchive&) override {}
  std::string how;
};

struct OddStream : data::datasets::StatefulDataset<OddStream, std::vector<data::TensorExample>> {
  explicit OddStream(std::string how) : how(std::move(how)) {}
  void reset() override { std::tie(at, step) = pl::worker(); }
  std::optional<std::vector<data::TensorExample>> get_batch(size_t count) override {
    std::vector<data::TensorExample> batch;
    for (count += 2 * (how == "greedy"); batch.size() < count && at < 12; at += step)
      batch.emplace_back(torch::tensor(at));
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  std::optional<size_t> size() const override {
    return how == "endless" ? std::optional(std::numeric_limits<size_t>::max()) : std::nullopt;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    save_or_not(how, at, archive);
  }
  void load(torch::serialize::InputArchive&) override {}
  std::string how;
  int64_t at = 0, step = 1;
};

// A stream whose batches are whole.
struct WholeBatches : data::datasets::StreamDataset<WholeBatches, std::optional<torch::Tensor>> {
  explicit WholeBatches(int64_t length) : length(length) {}
  std::optional<torch::Tensor> get_batch(size_t count) override {
    const int64_t from = std::exchange(at, std::min<int64_t>(at + count, length));
    return from < at ? std::optional(torch::arange(from, at)) : std::nullopt;
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  int64_t length, at = 0;
};

// The same; it ends with a batch of no rows.
struct EndsEmpty : data::datasets::StreamDataset<EndsEmpty, Example<torch::Tensor, Example<>>> {
  explicit EndsEmpty(int64_t length) : length(length) {}
  Example<torch::Tensor, Example<>> get_batch(size_t count) override {
    TORCH_CHECK(++calls < 20, "it has ended");
    const int64_t from = std::exchange(at, std::min<int64_t>(at + count, length));
    auto rows = torch::arange(from, at);
    return {rows, {rows, torch::tensor(7)}};
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  int64_t length, at = 0, calls = 0;
};

// Its save() and load() need the file that reset() opens; here it is a number.
struct Lines : Numbers<Lines> {
  using Numbers::Numbers;
  void reset() override {
    Numbers::reset();
    is_open = true;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    TORCH_CHECK(is_open, "the file is not open");
    Numbers::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    TORCH_CHECK(is_open, "the file is not open");
    Numbers::load(archive);
  }
  bool is_open = false;
};

using MappedCounter = data::datasets::MapDataset<Counter, Same>;
using StackedCounter = data::datasets::MapDataset<Counter, data::transforms::Stack<>>;
using StackedTwice = data::datasets::MapDataset<MappedCounter, data::transforms::Stack<>>;
using StackedStream =
    data::datasets::MapDataset<Stream, data::transforms::Stack<data::TensorExample>>;

// Transforms of one sample; the second one has a position of its own.
struct Noisy : data::transforms::Transform<data::TensorExample, data::TensorExample> {
  data::TensorExample apply(data::TensorExample sample) override {
    return sample.data + torch::rand({}, pl::generator());
  }
};
struct Counts : Noisy {
  data::TensorExample apply(data::TensorExample sample) override {
    return Noisy::apply(std::move(sample)).data + 100 * count++;
  }
  int64_t count = 0;
};
template <typename Transform>
using StackedOf = data::datasets::MapDataset<
    data::datasets::MapDataset<Stream, Transform>, data::transforms::Stack<data::TensorExample>>;

// Samples that fit into a bit of a vector, and a get() that only torch calls.
class Flags : public data::datasets::Dataset<Flags, bool> {
 public:
  explicit Flags(int64_t length) : length(length) {}
  std::optional<size_t> size() const override { return length; }

 private:
  bool get(size_t index) override { return index % 2; }
  int64_t length;
};

struct Cat {
  int64_t whiskers;
  std::string name;
};
struct Dog {
  double tail;
};
using Pet = std::variant<Cat, Dog>;

// Constructors and samples of one of two types.
struct Pets : data::datasets::Dataset<Pets, Pet> {
  explicit Pets(Cat cat) : pet(cat) {}
  explicit Pets(Dog dog) : pet(dog) {}
  Pet get(size_t) override { return pet; }
  std::optional<size_t> size() const override { return 2; }
  Pet pet;
};
struct CountsDogs : data::transforms::Collation<int64_t, std::vector<Pet>> {
  int64_t apply_batch(std::vector<Pet> pets) override {
    return std::count_if(pets.begin(), pets.end(), [](const Pet& pet) { return pet.index() == 1; });
  }
};
struct CountsCats : data::transforms::Collation<int64_t, std::vector<Cat>> {
  int64_t apply_batch(std::vector<Cat> cats) override { return cats.size(); }
};

// Samples with a text of C, which can be given to Python only.
struct Split {
  const char* name;
  char letter;
};
struct Splits : data::datasets::Dataset<Splits, Split> {
  Split get(size_t index) override { return {index % 2 ? "test" : "train", 'x'}; }
  std::optional<size_t> size() const override { return 4; }
};
struct CollatesSplits : data::transforms::Collation<std::string, std::vector<Split>> {
  std::string apply_batch(std::vector<Split> splits) override { return splits[0].name; }
};

// Samples with the epoch, which torch's wrappers do not pass on.
struct Epochs : data::datasets::Dataset<Epochs> {
  explicit Epochs(int64_t length) : length(length) {}
  void set_epoch(size_t number) { epoch = number; }
  Example<> get(size_t index) override {
    return {torch::tensor(int64_t(index)), torch::tensor(epoch)};
  }
  std::optional<size_t> size() const override { return length; }
  int64_t length, epoch = 0;
};
struct Plus : data::transforms::Transform<Example<>, Example<>> {
  Example<> apply(Example<> sample) override { return {sample.data + 100, sample.target}; }
};
using MappedEpochs = data::datasets::MapDataset<Epochs, Plus>;
using SharedEpochs = data::datasets::SharedBatchDataset<MappedEpochs>;
using MappedTwice = data::datasets::MapDataset<SharedEpochs, Plus>;
struct DerivedEpochs : MappedEpochs {
  explicit DerivedEpochs(int64_t length) : MappedEpochs(Epochs(length), Plus()) {}
  std::vector<Example<>> get_batch(at::ArrayRef<size_t> indices) override {
    return MappedEpochs::get_batch(indices);
  }
};

struct EpochsStream : Counter {
  using Counter::Counter;
  void set_epoch(size_t number) { epoch = number; }
  std::vector<Example<>> get_batch(size_t count) override {
    auto batch = Counter::get_batch(count);
    for (auto& sample : batch)
      sample.target = torch::tensor(epoch);
    return batch;
  }
  int64_t epoch = 0;
};
using MappedEpochsStream = data::datasets::MapDataset<EpochsStream, Plus>;

// At their end they go back to the beginning, as the reader of a tape does.
struct Rewinds : Forgetful {
  explicit Rewinds(int64_t length) : Forgetful(length, 1) {}
  std::optional<std::vector<size_t>> next(size_t count) override {
    auto taken = Forgetful::next(count);
    if (!taken)
      at = 0;
    return taken;
  }
};
struct RewindsStream : Counter {
  using Counter::Counter;
  std::vector<Example<>> get_batch(size_t count) override {
    auto batch = Counter::get_batch(count);
    if (batch.empty())
      at = 0;
    return batch;
  }
};

// Targets of std, in a namespace with functions that are called as the header's are.
namespace mine {
struct Captions : data::datasets::Dataset<Captions, Example<torch::Tensor, std::string>> {
  explicit Captions(int64_t length) : length(length) {}
  Example<torch::Tensor, std::string> get(size_t index) override {
    return {index + torch::rand({2}), "caption " + std::to_string(index)};
  }
  std::optional<size_t> size() const override { return length; }
  int64_t length;
};
struct Boxes : data::datasets::Dataset<Boxes, Example<std::string, std::vector<double>>> {
  explicit Boxes(int64_t length) : length(length) {}
  Example<std::string, std::vector<double>> get(size_t index) override {
    return {"image " + std::to_string(index), {double(index), torch::rand({}).item<double>()}};
  }
  std::optional<size_t> size() const override { return length; }
  int64_t length;
};
template <typename Sample>
struct Louder : data::transforms::Transform<Sample, Sample> {
  Sample apply(Sample sample) override {
    if constexpr (std::is_same_v<decltype(sample.target), std::string>)
      sample.target += "!";
    else
      sample.target.push_back(torch::rand({}).item<double>());
    return sample;
  }
};
template <typename Source>
using Loud = data::datasets::MapDataset<Source, Louder<typename Source::ExampleType>>;
template <typename Sample>
struct Last : data::transforms::Collation<Sample, std::vector<Sample>> {
  Sample apply_batch(std::vector<Sample> batch) override { return batch.back(); }
};

#define MINE_OF(name, Object)   \
  template <typename... Others> \
  void name(Object&, Others&&...) = delete;
#define MINE(name)              \
  MINE_OF(name, Captions)       \
  MINE_OF(name, Loud<Captions>) \
  MINE_OF(name, Louder<Captions::ExampleType>)
PICKLABLE_LOADER_EACH(MINE, get_each, get_sample, get_one, get_batch, get_untransformed)
PICKLABLE_LOADER_EACH(MINE, transformed, apply_to, apply_each)
} // namespace mine

// Opens its file as docs/cpp.md shows.
struct Records : data::datasets::Dataset<Records, torch::Tensor> {
  Records(std::string path, int64_t length) : path(std::move(path)), length(length) {}
  torch::Tensor get(size_t index) override {
    if (std::exchange(owner, getpid()) != getpid())
      file = std::ifstream(path, std::ios::binary);
    int64_t record;
    file.seekg(index * sizeof(record)).read(reinterpret_cast<char*>(&record), sizeof(record));
    return torch::tensor(record);
  }
  std::optional<size_t> size() const override { return length; }
  std::string path;
  int64_t length;
  std::ifstream file;
  pid_t owner = 0;
};

// What an extension may have beside the classes of bind_...
struct Sequential : data::samplers::SequentialSampler {
  using SequentialSampler::SequentialSampler;
};
enum class Mode { train, test };
struct Config {
  enum class Unit { one, ten };
  Unit unit;
};
struct Corrupt : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Configured : data::datasets::Dataset<Configured, data::TensorExample> {
  Configured(Mode mode, Config config) : mode(mode), config(config) {}
  data::TensorExample get(size_t index) override {
    if (mode == Mode::test && index == 3)
      throw Corrupt("record 3");
    return torch::tensor(int64_t(index) * (config.unit == Config::Unit::ten ? 10 : 1));
  }
  std::optional<size_t> size() const override { return 6; }
  Mode mode;
  Config config;
};

} // namespace

PICKLABLE_LOADER_FIELDS(Sample, image, label, name)
PICKLABLE_LOADER_FIELDS(Cat, whiskers, name)
PICKLABLE_LOADER_FIELDS(Dog, tail)
PICKLABLE_LOADER_FIELDS(Split, name, letter)

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, py::mod_gil_not_used()) {
  namespace samplers = data::samplers;
  auto length = pl::init<int64_t>(py::arg("length"));
  pl::bind_dataset<Rows>(
      m, "Rows", pl::init<torch::Tensor, double>(py::arg("values"), py::arg("noise") = 1.0),
      pl::make([](int64_t length) { return Rows(torch::randn({length}).abs(), 1); }, py::arg("length")));
  pl::bind_dataset<Stacked>(m, "Stacked", pl::make([](torch::Tensor values) {
                              return Rows(values, 1).map(data::transforms::Stack<>());
                            }));
  pl::bind_dataset<Shared>(m, "Shared", pl::make([](torch::Tensor values) {
                             return data::datasets::make_shared_dataset<Rows>(values, 1.0);
                           }));
  pl::bind_dataset<Loops>(m, "Loops", pl::init<torch::Tensor>(py::arg("values")));
  pl::bind_dataset<Samples>(m, "Samples", length);
  pl::bind_dataset<Unnamed>(m, "Unnamed", pl::init<>());
  pl::bind_dataset<Calls>(m, "Calls", pl::init<py::function>(), pl::hold_gil());
  pl::bind_dataset<Sneaky>(m, "Sneaky", pl::init<>());
  pl::bind_dataset<Touches>(m, "Touches", pl::init<std::string>());
  pl::bind_dataset<Callback>(m, "Callback", pl::init<std::vector<std::function<double(int64_t)>>>());
  pl::bind_dataset<Dicts>(m, "Dicts", pl::init<>(), pl::hold_gil());
  m.def("bind_python_without_the_gil", [m](std::string what) mutable {
    if (what == "samples")
      pl::bind_dataset<Dicts>(m, "Bare", pl::init<>());
    if (what == "indices")
      pl::bind_sampler<GivesLists>(m, "Bare", pl::init<>());
    if (what == "batches")
      pl::bind_collate<CollatesDicts>(m, "Bare", pl::init<>());
  });
  m.def("bind_without_the_gil", [m]() mutable {
    pl::bind_dataset<Calls>(m, "Calls2", pl::init<py::function>());
  });
  m.def("bind_many_without_the_gil", [m]() mutable {
    using Functions = std::map<std::string, std::vector<std::optional<py::function>>>;
    pl::bind_dataset<Calls>(
        m, "Calls3", pl::make([](Functions functions) { return Calls(*functions["f"].at(0)); }));
  });

  pl::bind_collate<data::transforms::Stack<>>(m, "Stack", pl::init<>());
  pl::bind_collate<CollatesToUnknown>(m, "CollatesToUnknown", pl::init<>());

  pl::bind_sampler<Shuffled>(m, "Shuffled", pl::init<int64_t, int64_t>(py::arg("length"), py::arg("seed") = 1))
      .def("__len__", [](Shuffled& sampler) { return sampler.length; });
  pl::bind_sampler<NeedsReset>(m, "NeedsReset", pl::init<int64_t, int64_t>(py::arg("length"), py::arg("seed") = 1));
  pl::bind_sampler<Forgetful>(m, "Forgetful", pl::init<int64_t, int64_t>(py::arg("length"), py::arg("seed") = 1));
  pl::bind_sampler<samplers::RandomSampler>(m, "RandomSampler", pl::init<int64_t>(py::arg("size")));
  pl::bind_sampler<samplers::SequentialSampler>(m, "SequentialSampler", pl::init<size_t>(py::arg("size")));
  pl::bind_sampler<samplers::DistributedRandomSampler>(
      m, "DistributedRandomSampler",
      pl::init<size_t, size_t, size_t, bool>(
          py::arg("size"), py::arg("num_replicas") = 1, py::arg("rank") = 0, py::arg("allow_duplicates") = true));

  auto share = pl::init<size_t, size_t, size_t>(
      py::arg("size"), py::arg("num_replicas") = 1, py::arg("rank") = 0);
  pl::bind_sampler<samplers::DistributedSequentialSampler>(m, "DistributedSequentialSampler", share);
  pl::bind_sampler<OwnShare>(m, "OwnShare", share);

  auto values = pl::init<torch::Tensor>(py::arg("values"));
  pl::bind_dataset<Engines>(m, "Engines", pl::init<std::vector<int64_t>>());
  pl::bind_dataset<Jittered>(m, "Jittered", pl::make([](torch::Tensor values) {
                               return Rows(values, 0).map(Jitter());
                             }));
  pl::bind_dataset<OwnBatches>(m, "OwnBatches", values);
  pl::bind_dataset<OwnSeeds>(m, "OwnSeeds", pl::init<std::vector<double>>());
  pl::bind_dataset<Mapped>(m, "Mapped", pl::make([](int64_t length) {
                             return Engines(std::vector<int64_t>(length)).map(Same());
                           }));
  pl::bind_dataset<Noised>(m, "Noised", pl::make([](std::vector<double> values) {
                             return OwnSeeds(std::move(values)).map(Noise());
                           }));
  pl::bind_dataset<NoisedTwice>(m, "NoisedTwice", pl::make([](std::vector<double> values) {
                                  auto once = OwnSeeds(std::move(values)).map(Noise());
                                  return data::datasets::make_shared_dataset<Noised>(once).map(Noise());
                                }));
  pl::bind_sampler<OddSampler>(m, "OddSampler", pl::init<std::string>());
  pl::bind_stream<OddStream>(m, "OddStream", pl::init<std::string>());
  pl::bind_stream<WholeBatches>(m, "WholeBatches", length);
  pl::bind_stream<EndsEmpty>(m, "EndsEmpty", length);
  pl::bind_dataset<Throws>(m, "Throws", pl::init<std::string>());
  pl::bind_dataset<Locked>(m, "Locked", pl::init<>());
  pl::bind_sampler<Writes>(m, "Writes", pl::init<std::string>()).def(py::self == py::self);
  pl::bind_stream<Shards>(m, "Shards", length)
      .state([](const Shards& stream) { return stream.at; },
             [](Shards& stream, torch::Tensor at) { stream.at = at; });

  pl::bind_dataset<Flags>(
      m, "Flags", pl::make([calls = 0](int64_t length) mutable { return ++calls, Flags(length); }),
      pl::make([]() noexcept { return std::make_unique<Flags>(3); }));
  pl::bind_dataset<Pets>(m, "Pets", pl::init<Cat>(), pl::init<Dog>());
  pl::bind_collate<CountsDogs>(m, "CountsDogs", pl::init<>());
  pl::bind_dataset<Splits>(m, "Splits", pl::init<>());
  pl::bind_collate<CollatesSplits>(m, "CollatesSplits", pl::init<>());
  pl::bind_collate<CountsCats>(m, "CountsCats", pl::init<>());
  pl::bind_collate<Same>(m, "Same", pl::init<>());
  pl::bind_stream<MappedCounter>(m, "MappedCounter", pl::make([](int64_t length) {
                                   return Counter(length).map(Same());
                                 }));
  pl::bind_stream<StackedCounter>(m, "StackedCounter", pl::make([](int64_t length) {
                                    return Counter(length).map(data::transforms::Stack<>());
                                  }));
  pl::bind_stream<StackedTwice>(m, "StackedTwice", pl::make([](int64_t length) {
                                  return StackedTwice(Counter(length).map(Same()), {});
                                }));
  pl::bind_stream<StackedStream>(m, "StackedStream", pl::make([](int64_t length) {
                                   return StackedStream(Stream(length), {});
                                 }));
  pl::bind_stream<StackedOf<Noisy>>(m, "StackedNoisy", pl::make([](int64_t length) {
                                      return StackedOf<Noisy>(Stream(length).map(Noisy()), {});
                                    }));
  pl::bind_stream<StackedOf<Counts>>(m, "StackedCounts", pl::make([](int64_t length) {
                                       return StackedOf<Counts>(Stream(length).map(Counts()), {});
                                     }));
  pl::bind_stream<Lines>(m, "Lines", length);
  pl::bind_stream<Stream>(m, "Stream", length);
  pl::bind_stream<Counter>(m, "Counter", length)
      .state(
          [](const Counter& counter) { return counter.at; },
          [](Counter& counter, int64_t at) { counter.at = at; });
  pl::bind_stream<Opaque>(m, "Opaque", length);
  pl::bind_dataset<MappedEpochs>(m, "MappedEpochs", pl::make([](int64_t length) {
                                   return Epochs(length).map(Plus());
                                 }));
  auto shared = [](int64_t length) {
    return data::datasets::make_shared_dataset<MappedEpochs>(Epochs(length).map(Plus()));
  };
  pl::bind_dataset<SharedEpochs>(m, "SharedEpochs", pl::make(shared));
  pl::bind_dataset<MappedTwice>(m, "MappedTwice", pl::make([shared](int64_t length) {
                                  return shared(length).map(Plus());
                                }));
  pl::bind_dataset<DerivedEpochs>(m, "DerivedEpochs", length);
  pl::bind_stream<EpochsStream>(m, "EpochsStream", length);
  pl::bind_stream<MappedEpochsStream>(m, "MappedEpochsStream", pl::make([](int64_t length) {
                                        return MappedEpochsStream(EpochsStream(length), Plus());
                                      }));
  pl::bind_sampler<Rewinds>(m, "Rewinds", length);
  pl::bind_stream<RewindsStream>(m, "RewindsStream", length);

  using mine::Boxes, mine::Captions, mine::Loud;
  pl::bind_dataset<Captions>(m, "Captions", length);
  pl::bind_dataset<Boxes>(m, "Boxes", length);
  pl::bind_dataset<Loud<Captions>>(m, "LoudCaptions", pl::make([](int64_t length) {
                                     return Loud<Captions>(Captions(length), {});
                                   }));
  pl::bind_dataset<Loud<Boxes>>(m, "LoudBoxes", pl::make([](int64_t length) {
                                  return Loud<Boxes>(Boxes(length), {});
                                }));
  pl::bind_collate<mine::Last<Captions::ExampleType>>(m, "LastCaption", pl::init<>());
  pl::bind_collate<mine::Last<Boxes::ExampleType>>(m, "LastBoxes", pl::init<>());

  pl::bind_dataset<Records>(m, "Records", pl::init<std::string, int64_t>());

  py::enum_<Mode>(m, "Mode").value("train", Mode::train).value("test", Mode::test);
  py::class_<Config> config(m, "Config");
  py::enum_<Config::Unit>(config, "Unit")
      .value("one", Config::Unit::one)
      .value("ten", Config::Unit::ten);
  config.def(py::init<Config::Unit>())
      .def(py::pickle(
          [](const Config& config) { return py::make_tuple(config.unit); },
          [](py::tuple saved) { return Config{saved[0].cast<Config::Unit>()}; }));
  py::register_exception<Corrupt>(m, "Corrupt");
  pl::bind_dataset<Configured>(m, "Configured", pl::init<Mode, Config>());
  m.def("collated", [](const std::vector<torch::Tensor>& samples) { return torch::stack(samples) + 1; });
  auto apart = m.def_submodule("apart");
  pl::bind_sampler<Sequential>(apart, "Sequential", pl::init<size_t>(py::arg("size")));

  pl::bind_chunks<Chunks>(m, "Chunks", pl::init<int64_t, int64_t>(py::arg("count"), py::arg("length")));
}
