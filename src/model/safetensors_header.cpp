// Reads the header of a safetensors file as it streams by: only the one shape that a header has is accepted,
// so nothing is built up that a hostile file could make large.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <set>

#include "headroom/core/error.h"
#include "headroom/model/safetensors.h"
#include "model/json.h"

namespace headroom {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and read in place");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own library has it
constexpr std::size_t kLengthBytes = 8;

struct FileType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array kTypes = {
    FileType{"F32", 4, DType::f32}, FileType{"BF16", 2, DType::bf16}, FileType{"F16", 2, DType::f16},
    FileType{"F64", 8, DType::f64}, FileType{"I32", 4, DType::i32},   FileType{"U8", 1, DType::u8},
    FileType{"I64", 8, {}},         FileType{"I16", 2, {}},           FileType{"I8", 1, {}},
    FileType{"U16", 2, {}},         FileType{"U32", 4, {}},           FileType{"U64", 8, {}},
    FileType{"BOOL", 1, {}},        FileType{"F8_E4M3", 1, {}},       FileType{"F8_E5M2", 1, {}},
};

// One tensor as the header states it, before any of it is believed.
struct Claim {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  unsigned seen = 0;  // bit per field
};

// Called by nlohmann's parser; false ends the parse, but every refusal here throws.
class HeaderListener {
 public:
  explicit HeaderListener(std::string_view source) : source_(source) {}

  std::vector<Claim> claims;
  std::map<std::string, std::string> metadata;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_integer(std::int64_t value) { return unexpected(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) { return unexpected(text); }
  bool binary(Json::binary_t&) { return unexpected("bytes"); }

  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::shape) {
      check(claims.back().shape.size() < kMaxRank, "{}: tensor {} has a rank over {}", source_, tensor(),
            kMaxRank);
      claims.back().shape.push_back(value);
    } else if (place_ == Place::offsets) {
      check(claims.back().offsets.size() < 2, "{}: tensor {} has more than two data_offsets", source_,
            tensor());
      claims.back().offsets.push_back(value);
    } else {
      return unexpected(fmt::format("{}", value));
    }
    return true;
  }

  bool string(std::string& text) {
    if (place_ == Place::entry && field_ == Field::type) {
      claims.back().type = text;
    } else if (place_ == Place::metadata) {
      metadata[key_] = text;
    } else {
      return unexpected(in_quotes(text));
    }
    return true;
  }

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::outside: place_ = Place::top; return true;
      case Place::top:
        place_ = key_ == "__metadata__" ? Place::metadata : Place::entry;
        if (place_ == Place::entry) claims.push_back({.name = key_, .type = {}, .shape = {}, .offsets = {}});
        return true;
      default: return unexpected("an object");
    }
  }

  bool end_object() {
    if (place_ == Place::entry) {
      check(claims.back().seen == kAllFields, "{}: tensor {} lacks one of dtype, shape, data_offsets",
            source_, tensor());
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::entry || field_ == Field::type) return unexpected("a list");
    place_ = field_ == Field::shape ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() {
    place_ = Place::entry;
    return true;
  }

  bool key(std::string& text) {
    if (place_ == Place::entry) {
      take_field(text);
    } else {
      key_ = text;
      const bool fresh = place_ == Place::top ? names_.insert(text).second : !metadata.contains(text);
      check(fresh, "{}: {} is there twice", source_, in_quotes(text));
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    fail(ErrorKind::input, "{}: the header is not JSON from byte {} on", source_, kLengthBytes + position);
  }

 private:
  enum class Place : std::uint8_t { outside, top, metadata, entry, shape, offsets };
  enum class Field : std::uint8_t { type, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
  static constexpr unsigned kAllFields = 7;

  void take_field(const std::string& text) {
    const auto found = std::ranges::find(kFields, text);
    check(found != kFields.end(), "{}: tensor {} has a field {}; accepted: dtype, shape, data_offsets",
          source_, tensor(), in_quotes(text));
    const auto index = static_cast<unsigned>(found - kFields.begin());
    check((claims.back().seen >> index & 1u) == 0, "{}: tensor {} has {} twice", source_, tensor(), text);
    claims.back().seen |= 1u << index;
    field_ = static_cast<Field>(index);
  }

  [[nodiscard]] std::string tensor() const { return in_quotes(claims.back().name); }

  bool unexpected(std::string_view what) const {
    if (place_ == Place::outside)
      fail(ErrorKind::input, "{}: the header is {}, not an object", source_, what);
    if (place_ == Place::top || place_ == Place::metadata) {
      fail(ErrorKind::input, "{}: {} is {} in the header; accepted: {}", source_, in_quotes(key_), what,
           place_ == Place::top ? "an object" : "a text");
    }
    fail(ErrorKind::input, "{}: tensor {} has {} in its {}; accepted: {}", source_, tensor(), what,
         kFields[static_cast<std::size_t>(field_)],
         field_ == Field::type ? "a text" : "whole numbers from 0 on, in a list");
  }

  std::string_view source_;
  Place place_ = Place::outside;
  Field field_ = Field::type;
  std::string key_;
  std::set<std::string> names_;
};

SafetensorsEntry believe(const Claim& claim, std::uint64_t data_bytes, std::string_view source) {
  const std::string tensor = in_quotes(claim.name);
  const auto type = std::ranges::find(kTypes, claim.type, &FileType::name);
  check(type != kTypes.end(), "{}: tensor {} has dtype {}; accepted: F32, BF16, F16, F64, I32, U8", source,
        tensor, in_quotes(claim.type));
  check(claim.offsets.size() == 2, "{}: tensor {} has {} data_offsets; accepted: 2", source, tensor,
        claim.offsets.size());
  const std::uint64_t begin = claim.offsets[0];
  const std::uint64_t end = claim.offsets[1];
  check(begin <= end && end <= data_bytes, "{}: tensor {} claims bytes {} to {} of {}", source, tensor, begin,
        end, data_bytes);
  std::uint64_t bytes = type->bytes;
  bool fits = true;
  for (const std::uint64_t extent : claim.shape) {
    fits = fits && extent <= std::uint64_t{1} << 62 && !__builtin_mul_overflow(bytes, extent, &bytes);
  }
  check(fits && bytes == end - begin,
        "{}: tensor {} of {} in shape [{}] does not have the {} bytes it claims", source, tensor, type->name,
        fmt::join(claim.shape, ", "), end - begin);
  const std::vector<std::int64_t> extents(claim.shape.begin(), claim.shape.end());
  return {.name = claim.name,
          .type = type->name,
          .dtype = type->dtype,
          .shape = Shape(extents),
          .begin = static_cast<std::int64_t>(begin),
          .end = static_cast<std::int64_t>(end)};
}

// One tensor after the other from the first byte of data to the last.
void check_cover(std::span<const SafetensorsEntry> entries, std::int64_t data_bytes,
                 std::string_view source) {
  std::int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    check(entry.begin >= covered,
          "{}: tensor {} begins at byte {} of the data, inside another that ends at {}", source,
          in_quotes(entry.name), entry.begin, covered);
    check(entry.begin == covered, "{}: bytes {} to {} of the data belong to no tensor", source, covered,
          entry.begin);
    covered = entry.end;
  }
  check(covered == data_bytes, "{}: bytes {} to {} of the data belong to no tensor", source, covered,
        data_bytes);
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto name_of = [this](std::size_t i) -> std::string_view { return entries[i].name; };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_of);
  return found == by_name.end() || name_of(*found) != name ? nullptr : &entries[*found];
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  check(file.size() >= kLengthBytes, "{}: {} bytes are too few for a safetensors file", source, file.size());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  check(header_bytes <= std::min<std::uint64_t>(kMaxHeaderBytes, file.size() - kLengthBytes),
        "{}: a header of {} bytes is claimed in a file of {}; accepted: up to {} and inside the file", source,
        header_bytes, file.size(), kMaxHeaderBytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  // The parser would skip a byte order mark and take a zero byte for the end.
  check(text.starts_with('{') && text.find('\0') == std::string_view::npos,
        "{}: the header is no JSON object", source);

  HeaderListener listener(source);
  try {
    Json::sax_parse(text, &listener);
  } catch (const Json::exception&) {
    fail(ErrorKind::input, "{}: the header is not JSON", source);
  }

  SafetensorsHeader header;
  header.metadata = std::move(listener.metadata);
  header.data_offset = static_cast<std::int64_t>(kLengthBytes + header_bytes);
  const std::uint64_t data_bytes = file.size() - kLengthBytes - header_bytes;
  for (const Claim& claim : listener.claims) header.entries.push_back(believe(claim, data_bytes, source));
  std::ranges::stable_sort(header.entries, {},
                           [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  check_cover(header.entries, static_cast<std::int64_t>(data_bytes), source);
  header.by_name.resize(header.entries.size());
  std::iota(header.by_name.begin(), header.by_name.end(), std::size_t{0});
  std::ranges::sort(header.by_name, {},
                    [&](std::size_t i) -> const std::string& { return header.entries[i].name; });
  return header;
}

}  // namespace headroom
