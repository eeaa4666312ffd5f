// Safetensors: eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the
// data without holes. The reader trusts nothing: whatever a file says is checked against the file before a
// byte of data is touched. Tensors are read and written in bounded pieces, so a model takes no memory besides
// its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/files.h"
#include "headroom/core/tensor_view.h"
#include "headroom/memory/staging.h"
#include "headroom/model/parameters.h"
#include "headroom/model/shards.h"

namespace headroom {

struct SafetensorsEntry {
  std::string name;
  std::string_view type;       // as the file says: F32, BF16, I64, ...
  std::optional<DType> dtype;  // nothing where the format knows the type and Headroom does not compute on it
  Shape shape;
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::vector<std::size_t> by_name;       // the same, as indices, in the order of their names
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  // bytes from the start of the file

  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;  // null where there is none
};

// Returns the header of a whole file in memory. Throws where the header is not valid for the file, with
// `source` at the beginning of the message.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] std::span<const SafetensorsEntry> entries() const { return header_.entries; }
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const { return header_.find(name); }
  // Throws where the tensor is missing or has another shape.
  [[nodiscard]] const SafetensorsEntry& at(std::string_view name, const Shape& shape) const;
  [[nodiscard]] std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  // What stands before the data: the header and its length.
  [[nodiscard]] std::span<const std::byte> header_bytes() const;

  // Writes elements first, first + 1, ... of a tensor to `to`, as many as it holds, as f32, bf16 or f16;
  // converts between floating-point types.
  void read(const SafetensorsEntry& entry, DType dtype, std::int64_t first, std::span<std::byte> to) const;

  // Whether a tensor and one of another file (or of this one) are the same numbers as f32; the shapes are
  // equal.
  [[nodiscard]] bool equal(const SafetensorsEntry& entry, const SafetensorsFile& other,
                           const SafetensorsEntry& other_entry) const;

 private:
  void check_weight(const SafetensorsEntry& entry) const;

  MappedFile file_;
  SafetensorsHeader header_;
};

// CRC-32C of what a file holds.
struct SafetensorsChecksums {
  std::uint32_t header = 0;            // of header_bytes()
  std::vector<std::uint32_t> tensors;  // of the bytes of each, in the order of the data
};

struct NamedShape {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// A file in the making that appears whole with commit(), or not at all. Its tensors are given at once, their
// data piece by piece in the same order.
enum class AllowedValues : std::uint8_t { any, finite };
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<NamedShape> tensors,
                    AllowedValues values = AllowedValues::any);

  // The next bytes, straight from their memory: whole elements of one tensor. Where only finite values are
  // allowed, another is a runtime error that names the tensor.
  void write(std::span<const std::byte> piece);
  // Throws where a tensor's data is missing.
  SafetensorsChecksums commit();

 private:
  [[nodiscard]] std::uint32_t checksum(std::span<const std::byte> piece) const;  // of the tensor so far
  void skip_complete();

  std::vector<NamedShape> tensors_;
  AllowedValues values_;
  std::string header_;
  FileWriter file_;
  std::vector<std::uint32_t> checksums_;  // [tensor]
  std::size_t tensor_ = 0;                // that is being written
  std::int64_t written_bytes_ = 0;        // of it
};

// Whether the weights in a folder have an output projection that differs from the embedding, as f32; false
// where there are no weights, or not both tensors.
[[nodiscard]] bool has_own_output(const std::filesystem::path& directory, const Shape& embedding);

// A model's weights from DIRECTORY/model.safetensors, or from the shards that model.safetensors.index.json
// names, into a flat tensor of the table, f32, bf16 or f16; padding becomes zero. Every parameter has to be
// there in its shape; further tensors are left alone. A model that ties its output projection to the
// embedding may have either of the two tensors; where it has both, they have to be equal. Where ranks divide
// the flat tensor, `slices` says which part of it this rank's is, and padding has to be zero already.
void load_weights(const std::filesystem::path& directory, const ParameterTable& table, const Tensor& flat,
                  Staging& staging, std::span<const ShardSlice> slices = {});

}  // namespace headroom
