// The one thread pool that every kernel of the process runs on.
//
// A job is a list of phases; a phase has one share per thread, and starts when the phase before it
// is complete. Each thread takes its own share first and then any that nobody has taken yet: a
// thread that is late (asleep, or off its core because the machine is busy) holds nobody up, since
// the others do its share. What is waited for is work that has begun. Waiting threads spin for a
// moment and then sleep, so an idle server uses no CPU. A pool of one thread is a plain loop.
//
// Jobs must not throw and must not start another job (refused). Two callers take turns. After a
// fork the child starts a pool of its own with the same settings on first use.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "memory.h"

namespace vllm {

constexpr size_t kCacheLine = 64;

// A counter that threads wait on until it moves on.
class Gate {
 public:
  uint32_t value() const { return value_.load(); }
  void advance();                  // wakes those who sleep
  void advance_quietly() { value_.fetch_add(1); }
  void wait_past(uint32_t seen);   // returns when the value is another
  bool spin_past(uint32_t seen, int pauses) const;   // gives up, returning false

 private:
  alignas(kCacheLine) std::atomic<uint32_t> value_{0};
  alignas(kCacheLine) std::atomic<uint32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable moved_;
};

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // `cpus` is empty (no pinning) or has one CPU per thread. Thread 0 is whoever calls `run`; it is
  // never pinned, because threads that it starts later would inherit that: cpus[0] is left to it.
  ThreadPool(int num_threads, std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Calls f(phase, share, num_shares) for every share of every phase, and done(phase) on the
  // calling thread when a phase is complete. `scratch_bytes` per share: see `scratch`.
  template <class F, class Done>
  void run_phases(int num_phases, F&& f, Done&& done, size_t scratch_bytes = 0) {
    using Fn = std::remove_reference_t<F>;
    const Share call = [](void* fn, int phase, int ith, int nth) {
      (*static_cast<Fn*>(fn))(phase, ith, nth);
    };
    const auto turn = begin(call, const_cast<void*>(static_cast<const void*>(&f)), num_phases,
                            scratch_bytes);
    for (int phase = 0; phase < num_phases; ++phase) {
      if (num_threads_ == 1) f(phase, 0, 1);
      else run_phase(own_job_, phase, 0);
      done(phase);
    }
    end();
  }

  // A job of one phase: f(share, num_shares).
  template <class F>
  void run(F&& f, size_t scratch_bytes = 0) {
    run_phases(1, [&f](int, int ith, int nth) { f(ith, nth); }, [](int) {}, scratch_bytes);
  }

  // Memory of a share during its call; 64-byte aligned, contents are whatever was left there.
  void* scratch(int ith) const {
    return static_cast<char*>(scratch_.data()) + static_cast<size_t>(ith) * scratch_stride_;
  }

 private:
  using Share = void (*)(void* fn, int phase, int ith, int nth);

  // `fn` may be gone when a late thread looks; it is used only after a share was claimed, and the
  // caller does not return before all claimed shares are done.
  struct Job { Share share; void* fn; int num_phases; uint32_t first_phase; };

  // The job as workers read it, while the caller may be writing the next one.
  struct Posted {
    std::atomic<Share> share{nullptr};
    std::atomic<void*> fn{nullptr};
    std::atomic<int> num_phases{0};
    std::atomic<uint32_t> first_phase{0};
  };

  // The number of the phase for which a share was last claimed.
  struct alignas(kCacheLine) Claim { std::atomic<uint32_t> phase{0}; };

  std::unique_lock<std::mutex> begin(Share share, void* fn, int num_phases, size_t scratch_bytes);
  void end();
  void post(const Job& job);
  uint32_t read_job(uint32_t seen, Job& job);
  void run_phase(const Job& job, int phase, int ith);
  void try_share(const Job& job, int phase, int share);
  void reserve_scratch(size_t bytes);
  void worker(int ith);

  const int num_threads_;
  std::mutex run_mutex_;
  Job own_job_{};
  std::atomic<bool> stopping_{false};
  Mapping scratch_;
  size_t scratch_stride_ = 0;

  Gate posted_;                     // odd while a job is being written
  Posted job_;
  Gate phases_;                     // number of phases completed since the pool exists
  alignas(kCacheLine) std::atomic<int> shares_done_{0};   // of the current phase
  std::vector<Claim> claims_;       // one per share
  std::vector<std::thread> workers_;
};

// The pool of this process; made on first use with the settings below. Hold on to the pointer
// while using the pool: replacing it does not end jobs that run. Callers hold the GIL.
std::shared_ptr<ThreadPool> current_pool();

// Replaces the pool. Throws std::invalid_argument if a value is not possible on this machine.
void configure_pool(int num_threads, std::vector<int> cpus);

// Joins the threads; later uses get a pool of one thread. For interpreter exit.
void shut_down_pool();

}  // namespace vllm
