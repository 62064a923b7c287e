// Values that cross between C++ and Python: examples, structs, and what save() writes.
#pragma once

#include <picklable_loader/running.h>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <sstream>
#include <string>
#include <vector>

// PICKLABLE_LOADER_FIELDS(Sample, image, label) at namespace scope: a Sample is a dict in Python.
// Each name is a public member; Sample is named with its namespace, and can be default-constructed.
#define PICKLABLE_LOADER_FIELDS(Type, ...)                                           \
  template <>                                                                        \
  struct pybind11::detail::type_caster<Type> {                                       \
    PYBIND11_TYPE_CASTER(Type, const_name(#Type " (a dict of " #__VA_ARGS__ ")"));   \
    bool load(handle source, bool convert) {                                         \
      ::picklable_loader::detail::failed_field = nullptr;                            \
      if (!isinstance<dict>(source))                                                 \
        return false;                                                                \
      PICKLABLE_LOADER_EACH(PICKLABLE_LOADER_READ, __VA_ARGS__)                      \
      return true;                                                                   \
    }                                                                                \
    static handle cast(const Type& value, return_value_policy, handle) {             \
      dict fields;                                                                   \
      PICKLABLE_LOADER_EACH(PICKLABLE_LOADER_WRITE, __VA_ARGS__)                     \
      return fields.release();                                                       \
    }                                                                                \
  };
#define PICKLABLE_LOADER_READ(name)                                                   \
  if (!::picklable_loader::detail::read_field(source, #name, value.name, convert)) \
    return false;
#define PICKLABLE_LOADER_WRITE(name) fields[#name] = value.name;
// f(a) f(b) f(c) of EACH(f, a, b, c), for up to 27 names
#define PICKLABLE_LOADER_EACH(f, ...) PICKLABLE_LOADER_27(PICKLABLE_LOADER_STEP(f, __VA_ARGS__))
#define PICKLABLE_LOADER_STEP(f, name, ...) \
  f(name) __VA_OPT__(PICKLABLE_LOADER_AGAIN PICKLABLE_LOADER_PARENTHESES(f, __VA_ARGS__))
#define PICKLABLE_LOADER_AGAIN() PICKLABLE_LOADER_STEP
#define PICKLABLE_LOADER_PARENTHESES ()
#define PICKLABLE_LOADER_27(...) PICKLABLE_LOADER_9(PICKLABLE_LOADER_9(PICKLABLE_LOADER_9(__VA_ARGS__)))
#define PICKLABLE_LOADER_9(...) PICKLABLE_LOADER_3(PICKLABLE_LOADER_3(PICKLABLE_LOADER_3(__VA_ARGS__)))
#define PICKLABLE_LOADER_3(...) PICKLABLE_LOADER_1(PICKLABLE_LOADER_1(PICKLABLE_LOADER_1(__VA_ARGS__)))
#define PICKLABLE_LOADER_1(...) __VA_ARGS__

namespace picklable_loader::detail {

// False where a dict has no such field, or one of another type: it may be meant for another struct.
template <typename Value>
bool read_field(py::handle source, const char* name, Value& value, bool convert) {
  const auto fields = py::reinterpret_borrow<py::dict>(source);
  py::detail::make_caster<Value> field;
  // what a char* points to would be gone before anybody reads it
  constexpr bool is_text = std::is_same_v<std::remove_cv_t<std::remove_pointer_t<Value>>, char> && std::is_pointer_v<Value>;
  if (is_text || !fields.contains(name) || !field.load(py::object(fields[name]), convert)) {
    failed_field = name;
    return false;
  }
  value = py::detail::cast_op<Value>(std::move(field));
  return true;
}

} // namespace picklable_loader::detail

// An Example is a pair in Python; an Example without a target is its data.
template <typename Data, typename Target>
struct pybind11::detail::type_caster<torch::data::Example<Data, Target>> {
  using Example = torch::data::Example<Data, Target>;
  PYBIND11_TYPE_CASTER(Example, const_name("Example"));
  bool load(handle source, bool) {
    make_caster<std::pair<Data, Target>> pair;
    if (!pair.load(source, true))
      return false;
    auto [data, target] = cast_op<std::pair<Data, Target>>(std::move(pair));
    value = {std::move(data), std::move(target)};
    return true;
  }
  static handle cast(const Example& example, return_value_policy, handle) {
    return pybind11::make_tuple(example.data, example.target).release(); // std has one, too
  }
};

template <typename Data>
struct pybind11::detail::type_caster<torch::data::Example<Data, void>> {
  using Example = torch::data::Example<Data, void>;
  PYBIND11_TYPE_CASTER(Example, const_name("Example"));
  bool load(handle source, bool) {
    make_caster<Data> data;
    if (!data.load(source, true))
      return false;
    value.data = cast_op<Data>(std::move(data));
    return true;
  }
  static handle cast(const Example& example, return_value_policy, handle) {
    return pybind11::cast(example.data).release();
  }
};

namespace picklable_loader::detail {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// A state holds the entries of an archive as values. The bytes of an archive are TorchScript, and
// reading those from a file can run code.
inline py::object to_python(const c10::IValue& value, const std::string& entry) {
  if (value.isTensor())
    return py::cast(value.toTensor());
  if (value.isBool())
    return py::cast(value.toBool());
  if (value.isInt())
    return py::cast(value.toInt());
  if (value.isDouble())
    return py::cast(value.toDouble());
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), text.size(), nullptr);
    if (!decoded)
      PyErr_Clear();
    TORCH_CHECK_VALUE(
        decoded, "save() writes a string as '", entry, "' that is no UTF-8: use a tensor of bytes");
    return py::reinterpret_steal<py::object>(decoded);
  }
  if (value.isNone())
    return py::none();
  const std::string kind = value.isList() ? value.type()->containedType(0)->str() : "";
  const bool known = kind == "int" || kind == "float" || kind == "bool" || kind == "str" || kind == "Tensor";
  TORCH_CHECK_TYPE(
      known, "save() writes ", value.type()->str(), " as '", entry,
      "': use tensors, numbers, strings, lists of these, or archives");
  py::list items;
  for (const c10::IValue& item : value.toListRef())
    items.append(to_python(item, entry));
  // with its type, as an empty list has none
  return py::make_tuple(kind, items);
}

template <typename Item>
c10::IValue to_list(const py::handle& items) {
  c10::List<Item> list;
  for (py::handle item : items)
    list.push_back(item.cast<Item>());
  return list;
}

inline c10::IValue to_ivalue(const py::handle& value) {
  if (THPVariable_Check(value.ptr()))
    return value.cast<at::Tensor>();
  if (py::isinstance<py::bool_>(value))
    return value.cast<bool>();
  if (py::isinstance<py::int_>(value))
    return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value))
    return value.cast<double>();
  if (py::isinstance<py::str>(value))
    return value.cast<std::string>();
  if (value.is_none())
    return {};
  auto [kind, items] = value.cast<std::pair<std::string, py::object>>();
  if (kind == "int")
    return to_list<int64_t>(items);
  if (kind == "float")
    return to_list<double>(items);
  if (kind == "bool")
    return to_list<bool>(items);
  if (kind == "str")
    return to_list<std::string>(items);
  TORCH_CHECK_TYPE(kind == "Tensor", "save() writes no list of ", kind);
  return to_list<at::Tensor>(items);
}

// It becomes a name in TorchScript, which has Python's keywords.
inline bool is_name(const py::handle& key) {
  return py::isinstance<py::str>(key) && key.attr("isidentifier")().cast<bool>() &&
      !py::module_::import("keyword").attr("iskeyword")(key).cast<bool>();
}

inline py::dict entries(InputArchive& archive) {
  py::dict found;
  for (const std::string& key : archive.keys()) {
    TORCH_CHECK_VALUE(
        is_name(py::cast(key)), "save() writes an entry with the name '",
        key, "', which load() cannot read: use a name like that of a variable");
    c10::IValue value;
    archive.read(key, value);
    if (value.isModule()) {
      InputArchive inner;
      archive.read(key, inner);
      found[py::cast(key)] = entries(inner);
    } else {
      found[py::cast(key)] = to_python(value, key);
    }
  }
  return found;
}

inline OutputArchive written(const py::dict& state) {
  OutputArchive archive;
  for (auto [key, value] : state) {
    // an entry's name becomes source code of TorchScript, and a state may come from anybody
    if (!is_name(key))
      throw py::value_error("a state has an entry whose name is none");
    if (py::isinstance<py::dict>(value)) {
      auto inner = written(value.cast<py::dict>());
      archive.write(key.cast<std::string>(), inner);
    } else if (THPVariable_Check(value.ptr())) {
      archive.write(key.cast<std::string>(), value.cast<at::Tensor>());
    } else {
      archive.write(key.cast<std::string>(), to_ivalue(value));
    }
  }
  return archive;
}

// The public way from one kind of archive to the other.
inline InputArchive reread(OutputArchive& archive) {
  std::ostringstream bytes;
  archive.save_to(bytes);
  const std::string text = bytes.str();
  InputArchive again;
  again.load_from(text.data(), text.size());
  return again;
}

template <typename T>
py::dict saved(const T& object) {
  OutputArchive archive;
  object.save(archive);
  auto again = reread(archive);
  return entries(again);
}

template <typename T>
void load(T& object, const py::dict& state) {
  auto archive = written(state);
  auto again = reread(archive);
  object.load(again);
}

} // namespace picklable_loader::detail
