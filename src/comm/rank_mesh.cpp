#include "comm/rank_mesh.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "headroom/core/error.h"

namespace headroom {
namespace {

using Clock = RankMesh::Clock;

constexpr std::uint64_t kGreeting = 0x6d6f6f7264616568;
constexpr std::chrono::milliseconds kRetry{20};
constexpr std::chrono::seconds kIntroduction{5};  // longer than a rank takes to say who it is

// What a rank says of itself on a new connection.
struct Hello {
  std::uint64_t greeting = kGreeting;
  std::int32_t rank = 0;
  std::int32_t count = 0;
  std::uint16_t port = 0;  // where it listens
};

// Where a rank listens, as rank 0 has seen it.
struct Place {
  std::uint32_t address = 0;  // in the network's byte order, like the port
  std::uint16_t port = 0;
};

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (descriptor_ < 0) fail(ErrorKind::runtime, "socket: {}", std::strerror(errno));
  }
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

sockaddr_in socket_address(std::uint32_t address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_addr.s_addr = address;
  result.sin_port = port;
  return result;
}

// Returns whether the socket was ready before the deadline.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  pollfd entry{.fd = socket, .events = events, .revents = 0};
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000))) > 0)
      return true;
  } while (Clock::now() < deadline);
  return false;
}

// What happens before all ranks are connected is waited for. Throws "WHO ..." where it does not happen.
class Exchange {
 public:
  Exchange(int socket, std::string who, Clock::time_point deadline)
      : socket_(socket), who_(std::move(who)), deadline_(deadline) {}

  template <class T>
  void write(const T& value) const {
    move(sizeof(T), POLLOUT, [&](std::size_t done) {
      return ::send(socket_, reinterpret_cast<const char*>(&value) + done, sizeof(T) - done, MSG_NOSIGNAL);
    });
  }
  template <class T>
  [[nodiscard]] T read() const {
    T value{};
    move(sizeof(T), POLLIN, [&](std::size_t done) {
      return ::recv(socket_, reinterpret_cast<char*>(&value) + done, sizeof(T) - done, 0);
    });
    return value;
  }

 private:
  template <class Move>
  void move(std::size_t bytes, short events, const Move& some) const {
    for (std::size_t done = 0; done < bytes;) {
      if (!wait_for(socket_, events, deadline_)) {
        fail(ErrorKind::runtime, "{} did not answer while the ranks were connecting", who_);
      }
      const ssize_t moved = some(done);
      if (moved <= 0) fail(ErrorKind::runtime, "{} ended while the ranks were connecting", who_);
      done += static_cast<std::size_t>(moved);
    }
  }

  int socket_;
  std::string who_;
  Clock::time_point deadline_;
};

void listen_at(const Socket& socket, int own, std::uint16_t port) {
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in any = socket_address(htonl(INADDR_ANY), htons(port));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    if (own == 0 && errno == EADDRINUSE) {
      fail(ErrorKind::runtime,
           "port {} is in use on the host of rank 0; set another MASTER_PORT for every rank", port);
    }
    fail(ErrorKind::runtime, "rank {} cannot listen at port {}: {}", own, port, std::strerror(errno));
  }
}

sockaddr_in own_address(const Socket& socket) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size);
  return own;
}

bool is_loopback(std::uint32_t address) {
  return ntohl(address) >> 24 == 127;
}

// A socket that tries a port of this host where nobody listens may be given that very port, and then it is
// connected with itself.
bool connected_with_itself(const Socket& socket, const Place& place) {
  const sockaddr_in own = own_address(socket);
  return own.sin_port == place.port && own.sin_addr.s_addr == place.address;
}

std::uint32_t look_up(const std::string& name) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (code != 0) {
    fail(ErrorKind::runtime, "MASTER_ADDR '{}' is not a host that can be found: {}", name,
         gai_strerror(code));
  }
  const std::uint32_t address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  freeaddrinfo(found);
  return address;
}

// Whoever says nothing, ends or says something else is not a rank: a greeting of zeros.
Hello read_hello(const Socket& socket, Clock::time_point deadline) {
  try {
    return Exchange(socket.get(), "somebody", std::min(deadline, Clock::now() + kIntroduction)).read<Hello>();
  } catch (const Error&) {
    return {.greeting = 0};
  }
}

// Tries again until the deadline: the other rank may not have started yet.
int connect_to(const Place& place, int own, int other, Seconds timeout, Clock::time_point deadline) {
  const sockaddr_in address = socket_address(place.address, place.port);
  while (true) {
    Socket socket;
    fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    int code = 0;
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      code = errno;
      if (code == EINPROGRESS) {
        code = ETIMEDOUT;
        socklen_t size = sizeof code;
        if (wait_for(socket.get(), POLLOUT, deadline)) {
          getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
        }
      }
    }
    if (code == 0 && connected_with_itself(socket, place)) code = ECONNREFUSED;
    if (code == 0) return socket.release();
    if (Clock::now() + kRetry >= deadline) {
      std::array<char, INET_ADDRSTRLEN> text{};
      inet_ntop(AF_INET, &place.address, text.data(), text.size());
      fail(ErrorKind::runtime, "rank {} could not reach rank {} at {}:{} within {:g} s: {}", own, other,
           text.data(), ntohs(place.port), timeout.count(), std::strerror(code));
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace

RankMesh::RankMesh(const LaunchedRank& self, Seconds timeout)
    : ranks_(self.ranks), connections_(static_cast<std::size_t>(self.ranks.count)) {
  validate(ranks_);
  if (ranks_.count == 1) return;
  try {
    connect_all(self, timeout);
  } catch (...) {
    close_all();
    throw;
  }
}

RankMesh::~RankMesh() {
  close_all();
}

void RankMesh::close_all() noexcept {
  for (Connection& connection : connections_) {
    if (connection.socket >= 0) close(connection.socket);
    connection.socket = -1;
  }
}

// Every rank connects with rank 0, which tells all of them where the others listen. Then a rank connects with
// those before it and accepts those after it.
void RankMesh::connect_all(const LaunchedRank& self, Seconds timeout) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  const auto [own, count] = ranks_;
  const auto socket_of = [&](int rank) -> int& {
    return connections_[static_cast<std::size_t>(rank)].socket;
  };
  const auto name_of = [](int rank) { return fmt::format("rank {}", rank); };
  Socket listener;
  listen_at(listener, own, own == 0 ? static_cast<std::uint16_t>(self.port) : 0);
  const Hello hello{.rank = own, .count = count, .port = own_address(listener).sin_port};

  std::vector<Place> places(static_cast<std::size_t>(count));
  const auto accept_rank = [&, own = own, count = count] {
    while (true) {
      if (Clock::now() >= deadline || !wait_for(listener.get(), POLLIN, deadline)) {
        std::string missing;
        for (int rank = own + 1; rank < count; ++rank) {
          if (socket_of(rank) < 0) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
        }
        fail(ErrorKind::runtime, "rank {} waited {:g} s for ranks to connect; missing: {}", own,
             timeout.count(), missing);
      }
      sockaddr_in from{};
      socklen_t size = sizeof from;
      Socket socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
      if (socket.get() < 0) {
        if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
        fail(ErrorKind::runtime, "rank {} cannot accept a connection: {}", own, std::strerror(errno));
      }
      const auto theirs = read_hello(socket, deadline);
      if (theirs.greeting != kGreeting) continue;  // somebody else
      if (theirs.count != count) {
        fail(ErrorKind::runtime, "rank {} was started as one of {} ranks, rank {} as one of {}", theirs.rank,
             theirs.count, own, count);
      }
      if (theirs.rank <= own || theirs.rank >= count) {
        fail(ErrorKind::runtime, "rank {} was connected by rank {}, which is not one of {} to {}", own,
             theirs.rank, own + 1, count - 1);
      }
      if (socket_of(theirs.rank) >= 0) {
        fail(ErrorKind::runtime, "two processes were started as rank {}", theirs.rank);
      }
      places[static_cast<std::size_t>(theirs.rank)] = {from.sin_addr.s_addr, theirs.port};
      socket_of(theirs.rank) = socket.release();
      return;
    }
  };

  if (own == 0) {
    for (int rank = 1; rank < count; ++rank) accept_rank();
    for (int rank = 1; rank < count; ++rank) {
      for (const Place& place : places) Exchange(socket_of(rank), name_of(rank), deadline).write(place);
    }
  } else {
    const Place first{look_up(self.address), htons(static_cast<std::uint16_t>(self.port))};
    socket_of(0) = connect_to(first, own, 0, timeout, deadline);
    const Exchange with_first(socket_of(0), name_of(0), deadline);
    with_first.write(hello);
    for (Place& place : places) {
      place = with_first.read<Place>();
      if (is_loopback(place.address)) place.address = first.address;  // a rank of rank 0's own host
    }
    for (int rank = 1; rank < own; ++rank) {
      socket_of(rank) = connect_to(places[static_cast<std::size_t>(rank)], own, rank, timeout, deadline);
      Exchange(socket_of(rank), name_of(rank), deadline).write(hello);
    }
    for (int rank = own + 1; rank < count; ++rank) accept_rank();
  }
  for (int rank = 0; rank < count; ++rank) {
    if (rank == own) continue;
    const int on = 1;
    setsockopt(socket_of(rank), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(socket_of(rank), F_SETFL, O_NONBLOCK);
  }
}

void RankMesh::send(int peer, const Note& note) {
  const auto bytes = std::as_bytes(std::span(&note, 1));
  std::vector<std::byte>& outbox = connections_[static_cast<std::size_t>(peer)].outbox;
  outbox.insert(outbox.end(), bytes.begin(), bytes.end());
  flush();
}

void RankMesh::flush() {
  for (Connection& connection : connections_) {
    if (connection.outbox.empty()) continue;
    const ssize_t sent =
        ::send(connection.socket, connection.outbox.data(), connection.outbox.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      connection.outbox.erase(connection.outbox.begin(), connection.outbox.begin() + sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      connection.outbox.clear();
    }
  }
}

bool RankMesh::flushed() const {
  return std::ranges::all_of(connections_, [](const Connection& one) { return one.outbox.empty(); });
}

void RankMesh::finish_sending() noexcept {
  for (const Connection& connection : connections_) {
    if (connection.socket >= 0) shutdown(connection.socket, SHUT_WR);
  }
}

void RankMesh::wait(Clock::time_point deadline) const {
  std::vector<pollfd> entries;
  for (const Connection& connection : connections_) {
    if (connection.socket >= 0) entries.push_back({.fd = connection.socket, .events = POLLIN, .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  ::poll(entries.data(), entries.size(),
         static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
}

bool RankMesh::read_available(int peer) {
  Connection& connection = connections_[static_cast<std::size_t>(peer)];
  if (connection.socket < 0) return false;
  std::array<std::byte, 16 * sizeof(Note)> buffer;
  while (true) {
    const ssize_t got = ::recv(connection.socket, buffer.data(), buffer.size(), 0);
    if (got > 0) {
      connection.inbox.insert(connection.inbox.end(), buffer.begin(), buffer.begin() + got);
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    close(connection.socket);
    connection.socket = -1;
    connection.outbox.clear();
    return true;
  }
}

Note RankMesh::note_at(std::span<const std::byte> bytes) {
  Note note;
  std::memcpy(&note, bytes.data(), sizeof note);
  note.step_name.back() = '\0';  // texts end, whatever was sent
  note.payload.back() = std::byte{0};
  return note;
}

}  // namespace headroom
