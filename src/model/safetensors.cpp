#include "headroom/model/safetensors.h"

#include <algorithm>
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

// `count` elements of the stored type become elements of the other.
void convert_piece(DType stored, const std::byte* source, DType dtype, std::byte* to, std::int64_t count) {
  if (stored == dtype) {
    std::memcpy(to, source, static_cast<std::size_t>(count * size_bytes(stored)));
    return;
  }
  switch (dtype) {
    case DType::f32: return convert_from(stored, source, reinterpret_cast<float*>(to), count);
    case DType::bf16: return convert_from(stored, source, reinterpret_cast<BFloat16*>(to), count);
    default: return convert_from(stored, source, reinterpret_cast<Float16*>(to), count);
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
std::string header_text(std::span<const NamedShape> tensors) {
  nlohmann::ordered_json json = {{"__metadata__", {{"format", "pt"}}}};  // transformers asks for the format
  std::int64_t begin = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (const auto& [name, dtype, shape] : tensors) {
    check(names.insert(name).second, "tensor {} is given twice to be written", in_quotes(name));
    // Torch maps the file and needs every element where its type may lie.
    check(begin % size_bytes(dtype) == 0, "tensor {} of {} would begin at byte {}; write wider types first",
          in_quotes(name), headroom::name(dtype), begin);
    const std::int64_t end = checked_add(begin, dense_bytes(dtype, shape));
    json[name] = {{"dtype", file_type(dtype)},
                  {"shape", std::vector(shape.extents().begin(), shape.extents().end())},
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

const SafetensorsEntry& SafetensorsFile::at(std::string_view name, const Shape& shape) const {
  const SafetensorsEntry* entry = find(name);
  check(entry != nullptr, "{}: tensor {} is missing; expected in shape {}", file_.path().string(),
        in_quotes(name), shape);
  check(entry->shape == shape, "{}: tensor {} has shape {}, expected {}", file_.path().string(),
        in_quotes(name), entry->shape, shape);
  return *entry;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, DType dtype, std::int64_t first,
                           std::span<std::byte> to) const {
  if (entry.dtype != DType::u8 || dtype != DType::u8) {
    check_weight(entry);
    check(is_weight(dtype), "{}: tensor {} is read into {}; accepted: f32, bf16 or f16",
          file_.path().string(), in_quotes(entry.name), name(dtype));
  }
  const std::int64_t end = first + std::ssize(to) / size_bytes(dtype);
  check(first >= 0 && end <= entry.shape.elements(), "{}: tensor {} has elements 0 to {}, not {} to {}",
        file_.path().string(), in_quotes(entry.name), entry.shape.elements(), first, end);
  const std::span<const std::byte> data = bytes(entry);
  const DType stored = entry.dtype.value_or(DType::f32);  // known: it was just checked
  const std::int64_t element_bytes = size_bytes(stored);
  for (std::int64_t i = first; i < end; i += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, end - i);
    const auto piece = data.subspan(static_cast<std::size_t>(i * element_bytes),
                                    static_cast<std::size_t>(count * element_bytes));
    convert_piece(stored, piece.data(), dtype, to.data() + (i - first) * size_bytes(dtype), count);
    file_.release(piece);
  }
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

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<NamedShape> tensors,
                                     AllowedValues values)
    : tensors_(std::move(tensors)),
      values_(values),
      header_(header_text(tensors_)),
      file_(path),
      checksums_(tensors_.size()) {
  file_.write(header_);
}

std::uint32_t SafetensorsWriter::checksum(std::span<const std::byte> piece) const {
  std::uint32_t checksum = checksums_[tensor_];
  while (!piece.empty()) {
    const auto part = piece.first(std::min(piece.size(), kCachedBytes));
    const DType dtype = tensors_[tensor_].dtype;
    if (values_ == AllowedValues::finite && dtype != DType::u8 && !all_finite(part, dtype)) {
      fail(ErrorKind::runtime, "tensor {} is not finite, so it is not saved",
           in_quotes(tensors_[tensor_].name));
    }
    checksum = crc32c(part, checksum);
    piece = piece.subspan(part.size());
  }
  return checksum;
}

void SafetensorsWriter::write(std::span<const std::byte> piece) {
  skip_complete();
  check(tensor_ < tensors_.size() && written_bytes_ + std::ssize(piece) <=
                                         dense_bytes(tensors_[tensor_].dtype, tensors_[tensor_].shape),
        "{} bytes are written to {} past the end of a tensor", piece.size(), file_.path().string());
  if (piece.size() <= kCachedBytes) {
    checksums_[tensor_] = checksum(piece);
    file_.write(piece);
  } else {
    // On a thread of its own where there is one: both only read, and a file system takes longer.
    std::future<std::uint32_t> made = std::async([&] { return checksum(piece); });
    file_.write(piece);
    checksums_[tensor_] = made.get();
  }
  written_bytes_ += std::ssize(piece);
}

void SafetensorsWriter::skip_complete() {
  while (tensor_ < tensors_.size() &&
         written_bytes_ == dense_bytes(tensors_[tensor_].dtype, tensors_[tensor_].shape)) {
    ++tensor_;
    written_bytes_ = 0;
  }
}

SafetensorsChecksums SafetensorsWriter::commit() {
  skip_complete();
  check(tensor_ == tensors_.size(), "{}: the data of tensor {} is missing", file_.path().string(),
        in_quotes(tensor_ < tensors_.size() ? tensors_[tensor_].name : ""));
  file_.commit();
  return {.header = crc32c(std::as_bytes(std::span(header_))), .tensors = checksums_};
}

}  // namespace headroom
