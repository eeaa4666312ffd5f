#include "headroom/model/safetensors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <set>

#include "headroom/core/checked.h"
#include "headroom/core/checksum.h"
#include "headroom/core/error.h"
#include "headroom/core/finite.h"
#include "model/json.h"

namespace headroom {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;
constexpr std::size_t kCachedBytes = std::size_t{1} << 18;  // stays in L2 from one look at it to the next

// In a file nothing is aligned, so elements are copied out before they are looked at.
template <class From, class To>
void convert(const std::byte* from, To* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    to[i] = static_cast<To>(static_cast<float>(value));
  }
}

template <class To>
void convert_from(DType from, const std::byte* source, To* to, std::int64_t count) {
  switch (from) {
    case DType::f32: return convert<float>(source, to, count);
    case DType::bf16: return convert<BFloat16>(source, to, count);
    case DType::f16: return convert<Float16>(source, to, count);
    default: return convert<double>(source, to, count);
  }
}

// Elements [first, first + count) of a dense view.
void convert_piece(DType from, const std::byte* source, const TensorView& to, std::int64_t first,
                   std::int64_t count) {
  if (from == to.dtype()) {
    std::memcpy(static_cast<std::byte*>(to.raw()) + first * size_bytes(from), source,
                static_cast<std::size_t>(count * size_bytes(from)));
    return;
  }
  switch (to.dtype()) {
    case DType::f32: return convert_from(from, source, to.data<float>() + first, count);
    case DType::bf16: return convert_from(from, source, to.data<BFloat16>() + first, count);
    default: return convert_from(from, source, to.data<Float16>() + first, count);
  }
}

bool is_weight(std::optional<DType> dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::string_view file_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f64: return "F64";
    case DType::i32: return "I32";
    case DType::u8: return "U8";
  }
  fail(ErrorKind::input, "{} has no name in a safetensors file", name(dtype));
}

// The length and the JSON, padded so that the data begins at a multiple of eight bytes.
std::string header_text(std::span<const NamedView> tensors) {
  nlohmann::ordered_json json = {{"__metadata__", {{"format", "pt"}}}};  // transformers asks for the format
  std::int64_t begin = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (const auto& [name, view] : tensors) {
    check(names.insert(name).second, "tensor {} is given twice to be written", in_quotes(name));
    check(view.is_dense(), "tensor {} of shape {} is strided; only a dense one is written", in_quotes(name),
          view.shape());
    // Torch maps the file and needs every element where its type may lie.
    check(begin % size_bytes(view.dtype()) == 0,
          "tensor {} of {} would begin at byte {}; write wider types first", in_quotes(name),
          headroom::name(view.dtype()), begin);
    const std::int64_t end = checked_add(begin, view.bytes());
    json[name] = {{"dtype", file_type(view.dtype())},
                  {"shape", std::vector(view.shape().extents().begin(), view.shape().extents().end())},
                  {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception&) {
    fail(ErrorKind::input, "a tensor to be written has a name that is no UTF-8");
  }
  text.resize(static_cast<std::size_t>(round_up(std::ssize(text), 8)), ' ');
  const std::uint64_t length = text.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + text;
}

std::span<const std::byte> bytes_of(const TensorView& view) {
  return {static_cast<const std::byte*>(view.raw()), static_cast<std::size_t>(view.bytes())};
}

// The checksums of tensors while they are written, on a thread of its own where there is one: both only read
// them, and a file system takes longer.
class Checksums {
 public:
  Checksums(std::span<const NamedView> tensors, AllowedValues values)
      : made_(std::async([this, tensors, values] {
          std::vector<std::uint32_t> checksums;
          for (const NamedView& tensor : tensors) checksums.push_back(make(tensor, values));
          return checksums;
        })) {}
  Checksums(const Checksums&) = delete;
  Checksums& operator=(const Checksums&) = delete;
  ~Checksums() { given_up_ = true; }

  // Whether get() will throw: what is still to be written would be in vain.
  [[nodiscard]] bool failed() const { return failed_; }
  // Throws where a tensor is not finite that has to be.
  std::vector<std::uint32_t> get() { return made_.get(); }

 private:
  [[nodiscard]] std::uint32_t make(const NamedView& tensor, AllowedValues values) {
    std::uint32_t checksum = 0;
    for (auto rest = bytes_of(tensor.view); !rest.empty() && !given_up_;) {
      const auto piece = rest.first(std::min(rest.size(), kCachedBytes));
      if (values == AllowedValues::finite && !all_finite(piece, tensor.view.dtype())) {
        failed_ = true;
        fail(ErrorKind::runtime, "tensor {} is not finite, so it is not saved", in_quotes(tensor.name));
      }
      checksum = crc32c(piece, checksum);
      rest = rest.subspan(piece.size());
    }
    return checksum;
  }

  std::atomic<bool> given_up_ = false;
  std::atomic<bool> failed_ = false;
  std::future<std::vector<std::uint32_t>> made_;  // its destructor waits
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(static_cast<std::size_t>(header_.data_offset + entry.begin),
                               static_cast<std::size_t>(entry.end - entry.begin));
}

std::span<const std::byte> SafetensorsFile::header_bytes() const {
  return file_.bytes().first(static_cast<std::size_t>(header_.data_offset));
}

void SafetensorsFile::check_weight(const SafetensorsEntry& entry) const {
  check(is_weight(entry.dtype) || entry.dtype == DType::f64,
        "{}: tensor {} holds {}; accepted: F32, BF16, F16, F64", file_.path().string(), in_quotes(entry.name),
        entry.type);
}

void SafetensorsFile::read_into(const SafetensorsEntry& entry, const TensorView& destination) const {
  const std::string source = file_.path().string();
  check(entry.shape == destination.shape(), "{}: tensor {} has shape {}, expected {}", source,
        in_quotes(entry.name), entry.shape, destination.shape());
  check_weight(entry);
  check(is_weight(destination.dtype()) && destination.is_dense(),
        "{}: tensor {} is read into {}; accepted: a dense view of f32, bf16 or f16", source,
        in_quotes(entry.name), name(destination.dtype()));
  const std::span<const std::byte> data = bytes(entry);
  const DType stored = entry.dtype.value_or(DType::f32);  // known: it was just checked
  const std::int64_t element_bytes = size_bytes(stored);
  for (std::int64_t first = 0; first < entry.shape.elements(); first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, entry.shape.elements() - first);
    const auto piece = data.subspan(static_cast<std::size_t>(first * element_bytes),
                                    static_cast<std::size_t>(count * element_bytes));
    convert_piece(stored, piece.data(), destination, first, count);
    file_.release(piece);
  }
}

void SafetensorsFile::read_into(std::string_view name, const TensorView& destination) const {
  const SafetensorsEntry* entry = find(name);
  check(entry != nullptr, "{}: tensor {} is missing; expected in shape {}", file_.path().string(),
        in_quotes(name), destination.shape());
  read_into(*entry, destination);
}

bool SafetensorsFile::equal(const SafetensorsEntry& entry, const SafetensorsFile& other,
                            const SafetensorsEntry& other_entry) const {
  check_weight(entry);
  other.check_weight(other_entry);
  const auto piece_of = [](const SafetensorsFile& file, const SafetensorsEntry& of, std::int64_t first,
                           std::int64_t count) {
    const std::int64_t element_bytes = size_bytes(*of.dtype);
    return file.bytes(of).subspan(static_cast<std::size_t>(first * element_bytes),
                                  static_cast<std::size_t>(count * element_bytes));
  };
  std::vector<float> here(static_cast<std::size_t>(std::min(kPieceElements, entry.shape.elements())));
  std::vector<float> there(here.size());
  for (std::int64_t first = 0; first < entry.shape.elements(); first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, entry.shape.elements() - first);
    const auto ours = piece_of(*this, entry, first, count);
    const auto theirs = piece_of(other, other_entry, first, count);
    if (entry.dtype != other_entry.dtype || std::memcmp(ours.data(), theirs.data(), ours.size()) != 0) {
      convert_from(entry.dtype.value_or(DType::f32), ours.data(), here.data(), count);
      convert_from(other_entry.dtype.value_or(DType::f32), theirs.data(), there.data(), count);
      if (!std::equal(here.begin(), here.begin() + count, there.begin())) return false;
    }
    file_.release(ours);
    other.file_.release(theirs);
  }
  return true;
}

SafetensorsChecksums write_safetensors(const std::filesystem::path& path, std::span<const NamedView> tensors,
                                       AllowedValues values) {
  const std::string header = header_text(tensors);
  FileWriter file(path);
  file.write(header);
  Checksums checksums(tensors, values);
  for (const NamedView& tensor : tensors) {
    if (checksums.failed()) break;
    file.write(bytes_of(tensor.view));
  }
  SafetensorsChecksums made{.header = crc32c(std::as_bytes(std::span(header))), .tensors = checksums.get()};
  file.commit();
  return made;
}

}  // namespace headroom
