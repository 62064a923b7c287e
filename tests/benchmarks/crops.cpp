// Random crops, 3x32x32 of 3x40x40, flipped or not: a batch in plain loops, or a sample in operators.
#include <picklable_loader/torch_data.h>

#include <chrono>

namespace data = torch::data;
namespace pl = picklable_loader;

namespace {

constexpr int64_t SIDE = 40, CROP = 32, CHANNELS = 3;

struct Loops : data::datasets::BatchDataset<Loops, data::Example<>> {
  Loops(torch::Tensor images, size_t length) : images(images.contiguous()), length(length) {}

  data::Example<> get_batch(at::ArrayRef<size_t> indices) override {
    const int64_t count = indices.size(), pixels = CHANNELS * SIDE * SIDE;
    auto crops = pl::empty({count, CHANNELS, CROP, CROP}), which = torch::empty({count}, torch::kInt64);
    const auto places = torch::randint(SIDE - CROP + 1, {count, 3}, torch::kInt64);
    const auto* place = places.const_data_ptr<int64_t>();
    float* out = crops.data_ptr<float>();
    for (int64_t k = 0; k < count; ++k, place += 3) {
      const uint8_t* image = images.const_data_ptr<uint8_t>() + (indices[k] % images.size(0)) * pixels;
      const bool flip = place[2] % 2;
      for (int64_t c = 0; c < CHANNELS; ++c)
        for (int64_t y = 0; y < CROP; ++y, out += CROP) {
          const uint8_t* row = image + (c * SIDE + place[0] + y) * SIDE + place[1];
          if (flip)
            for (int64_t x = 0; x < CROP; ++x)
              out[x] = row[CROP - 1 - x] * (1 / 255.0f);
          else
            for (int64_t x = 0; x < CROP; ++x)
              out[x] = row[x] * (1 / 255.0f);
        }
      which.data_ptr<int64_t>()[k] = indices[k];
    }
    return {crops, which};
  }

  std::optional<size_t> size() const override { return length; }

  torch::Tensor images;
  size_t length;
};

struct Operators : data::datasets::Dataset<Operators> {
  Operators(torch::Tensor images, size_t length) : images(std::move(images)), length(length) {}

  data::Example<> get(size_t index) override {
    const auto places = torch::randint(SIDE - CROP + 1, {3}, torch::kInt64);
    const auto* place = places.const_data_ptr<int64_t>();
    auto crop = images[index % images.size(0)].narrow(1, place[0], CROP).narrow(2, place[1], CROP);
    crop = crop.to(torch::kFloat32).div_(255);
    return {place[2] % 2 ? crop.flip({2}) : crop, torch::tensor(int64_t(index))};
  }

  std::optional<size_t> size() const override { return length; }

  torch::Tensor images;
  size_t length;
};

// Batches a second of the loader in C++, from the batch `warm` on.
double native(torch::Tensor images, int64_t batch_size, int64_t warm, int64_t timed) {
  auto loader = data::make_data_loader<data::samplers::SequentialSampler>(
      Loops(images, (warm + timed) * batch_size), data::DataLoaderOptions().batch_size(batch_size));
  auto begun = std::chrono::steady_clock::now();
  for (auto& batch : *loader) {
    (void)batch;
    if (--warm == 0)
      begun = std::chrono::steady_clock::now();
  }
  return timed / std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, py::mod_gil_not_used()) {
  auto arguments = pl::init<torch::Tensor, size_t>(py::arg("images"), py::arg("length"));
  pl::bind_dataset<Loops>(m, "Loops", arguments);
  pl::bind_dataset<Operators>(m, "Operators", arguments);
  m.def("native", &native, py::call_guard<py::gil_scoped_release>());
}
