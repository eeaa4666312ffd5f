// Copy engine and tensor cores on the host: what a tensor map and a product come to.
#include <cuda.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                                const cuuint64_t* extents, const cuuint64_t* stride_bytes,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (rank != 5 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0 || box[0] * 2 > 128) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  HostTensorMap host{};
  host.data = static_cast<const std::uint16_t*>(data);
  for (std::size_t i = 0; i < 5; ++i) {
    if (extents[i] == 0 || extents[i] > std::uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 ||
        element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    host.extents[i] = extents[i];
    host.box[i] = box[i];
    if (i == 0) continue;
    if (stride_bytes[i - 1] % 16 != 0 || stride_bytes[i - 1] >= std::uint64_t{1} << 40) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    host.stride_bytes[i - 1] = stride_bytes[i - 1];
  }
  std::memcpy(map, &host, sizeof host);
  return CUDA_SUCCESS;
}

namespace headroom::ptx {
namespace {

constexpr std::uint32_t kRowBytes = 128;

// The 16-byte pieces of a 128-byte row are swapped by the row's last three bits.
std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address / kRowBytes % 8 * 16);
}

float element_at(const std::byte* shared, std::uint32_t address, bool bf16) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, shared + swizzled(address), sizeof bits);
  return bf16 ? static_cast<float>(std::bit_cast<BFloat16>(bits))
              : static_cast<float>(std::bit_cast<Float16>(bits));
}

// Element (outer, inner) of an operand in shared memory.
float operand_at(const std::byte* shared, MatrixDescriptor operand, Major major, int outer, int inner,
                 bool bf16) {
  const std::uint32_t begin = (operand.low & 0x3FFF) << 4;
  const std::uint32_t tile_bytes = (operand.low >> 16 & 0x3FFF) << 4;
  const auto row = static_cast<std::uint32_t>(major == Major::inner ? outer : inner);
  const auto column = static_cast<std::uint32_t>(major == Major::inner ? inner : outer);
  return element_at(shared, begin + column / 64 * tile_bytes + row * kRowBytes + column % 64 * 2, bf16);
}

constexpr int kRows = 16;   // of a warp
constexpr int kInner = 16;  // of a product

void multiply(const HostProduct& product, const std::byte* shared, int warp) {
  const auto n = static_cast<std::size_t>(product.n);
  float a[kRows][kInner];
  std::vector<float> b(kInner * n);
  std::vector<float> d(kRows * n);
  const auto half_at = [&](std::uint32_t pair, int half) {
    const auto bits = static_cast<std::uint16_t>(pair >> 16 * half);
    return product.bf16 ? static_cast<float>(std::bit_cast<BFloat16>(bits))
                        : static_cast<float>(std::bit_cast<Float16>(bits));
  };
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kInner; ++k) {
      if (product.a_in_registers) {
        const auto lane = static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2);
        a[row][k] = half_at(product.a_registers[lane][static_cast<std::size_t>(k / 8 * 2 + row / 8)], k % 2);
      } else {
        a[row][k] = operand_at(shared, product.a, product.a_major, 16 * warp + row, k, product.bf16);
      }
    }
  }
  for (int k = 0; k < kInner; ++k) {
    for (int column = 0; column < product.n; ++column) {
      b[static_cast<std::size_t>(k) * n + static_cast<std::size_t>(column)] =
          operand_at(shared, product.b, product.b_major, column, k, product.bf16);
    }
  }
  // Where element (row, column) is among a warp's registers.
  const auto sum_at = [&](std::size_t row, std::size_t column) -> float& {
    return product.sums[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2];
  };
  for (std::size_t row = 0; row < kRows; ++row) {
    float* sums = d.data() + row * n;
    for (std::size_t column = 0; column < n; ++column) {
      sums[column] = product.accumulate ? sum_at(row, column) : 0;
    }
    for (std::size_t k = 0; k < kInner; ++k) {
      const float factor = a[row][k];
      const float* from = b.data() + k * n;
      for (std::size_t column = 0; column < n; ++column) sums[column] += factor * from[column];
    }
    for (std::size_t column = 0; column < n; ++column) sum_at(row, column) = sums[column];
  }
}

// The products of a warp, in the order in which its lanes issue them.
struct WarpProducts {
  std::deque<HostProduct> issued;       // and not done
  std::array<std::size_t, 32> count{};  // that each lane has issued
  std::size_t done = 0;
  std::array<std::deque<std::size_t>, 32> groups;  // counts at which each lane's groups end

  static WarpProducts& of_thread() {
    static thread_local std::map<std::pair<const cuda::Block*, unsigned>, WarpProducts> all;
    return all[{&cuda::Block::current(), threadIdx.x / 32}];
  }
};

}  // namespace

void issue_product(const HostProduct& product, float* sums, const std::uint32_t* a_registers) {
  WarpProducts& products = WarpProducts::of_thread();
  const std::size_t lane = threadIdx.x % 32;
  const std::size_t index = products.count[lane]++ - products.done;
  if (index == products.issued.size()) products.issued.push_back(product);
  HostProduct& mine = products.issued[index];
  cuda::Block::require(mine.n == product.n && mine.a.low == product.a.low && mine.b.low == product.b.low,
                       "the lanes of a warp issue different products");
  mine.sums[lane] = sums;
  if (a_registers != nullptr) std::copy_n(a_registers, 4, mine.a_registers[lane].begin());
  if (std::ranges::min(products.count) != products.count[lane]) return;
  const std::byte* shared = cuda::Block::current().fenced();
  const int warp = static_cast<int>(threadIdx.x % kWarpgroup / 32);
  cuda::Beside::current().add([&products, shared, warp] {
    multiply(products.issued.front(), shared, warp);
    products.issued.pop_front();
    ++products.done;
  });
}

void commit_products() {
  WarpProducts& products = WarpProducts::of_thread();
  const std::size_t lane = threadIdx.x % 32;
  products.groups[lane].push_back(products.count[lane]);
}

void wait_for_products(int pending) {
  WarpProducts& products = WarpProducts::of_thread();
  std::deque<std::size_t>& groups = products.groups[threadIdx.x % 32];
  std::size_t end = products.done;
  while (groups.size() > static_cast<std::size_t>(pending)) {
    end = groups.front();
    groups.pop_front();
  }
  cuda::Block::current().wait_until("its products", [&] { return products.done >= end; });
}

void tma_load(void* to, const CUtensorMap& map, std::uint64_t& barrier, int c0, int c1, int c2, int c3,
              int c4) {
  HostTensorMap host{};
  std::memcpy(&host, &map, sizeof host);
  const std::array<std::int64_t, 5> begin = {c0, c1, c2, c3, c4};
  auto& block = cuda::Block::current();
  const std::uint32_t address = shared_address(to);
  cuda::Block::require(address % kRowBytes == 0, "a box begins at a multiple of 128 bytes");
  cuda::Beside::current().add([=, &barrier, &block] {
    std::uint32_t row = 0;
    std::array<std::int64_t, 5> at{};
    for (at[4] = 0; at[4] < host.box[4]; ++at[4]) {
      for (at[3] = 0; at[3] < host.box[3]; ++at[3]) {
        for (at[2] = 0; at[2] < host.box[2]; ++at[2]) {
          for (at[1] = 0; at[1] < host.box[1]; ++at[1]) {
            const std::byte* from = reinterpret_cast<const std::byte*>(host.data);
            bool inside = true;
            for (std::size_t i = 1; i < 5; ++i) {
              const std::int64_t coordinate = begin[i] + at[i];
              inside &= coordinate >= 0 && coordinate < static_cast<std::int64_t>(host.extents[i]);
              from += coordinate * static_cast<std::int64_t>(host.stride_bytes[i - 1]);
            }
            for (std::int64_t column = 0; column < host.box[0]; ++column) {
              const std::int64_t coordinate = begin[0] + column;
              std::uint16_t element = 0;
              if (inside && coordinate >= 0 && coordinate < static_cast<std::int64_t>(host.extents[0])) {
                std::memcpy(&element, from + 2 * coordinate, sizeof element);
              }
              const std::uint32_t place = address + row * kRowBytes + static_cast<std::uint32_t>(2 * column);
              block.store_fenced(swizzled(place), &element, sizeof element);
            }
            ++row;
          }
        }
      }
    }
    mbarrier_complete(barrier, row * host.box[0] * 2);
  });
}

}  // namespace headroom::ptx
