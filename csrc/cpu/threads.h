// The one thread pool that every kernel of the process runs on.
//
// `run(f)` calls f(ith, nth) on all threads at once, the caller being thread 0, and returns when
// all are done. Between two steps of a job the threads meet at `barrier()`. Waiting threads spin
// for a moment and then sleep, so an idle server uses no CPU. A pool of one thread is a plain call.
//
// Jobs must not throw and must not call `run` again (refused). Two callers take turns. After a
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
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void advance();
  void wait_past(uint32_t seen);

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
  const std::vector<int>& cpus() const { return cpus_; }

  // `f(int ith, int nth)`; `scratch_bytes` per thread can be had from `scratch(ith)` inside it.
  template <class F>
  void run(F&& f, size_t scratch_bytes = 0) {
    using Fn = std::remove_reference_t<F>;
    run_job([](void* fn, int ith, int nth) { (*static_cast<Fn*>(fn))(ith, nth); },
            const_cast<void*>(static_cast<const void*>(&f)), scratch_bytes);
  }

  // For code inside `run`: returns when every thread of the job has called it.
  void barrier();

  // 64-byte aligned; contents are whatever the last job left.
  void* scratch(int ith) const {
    return static_cast<char*>(scratch_.data()) + static_cast<size_t>(ith) * scratch_stride_;
  }

 private:
  using Job = void (*)(void* fn, int ith, int nth);

  void run_job(Job job, void* fn, size_t scratch_bytes);
  void reserve_scratch(size_t bytes);
  void worker(int ith);

  const int num_threads_;
  const std::vector<int> cpus_;
  std::mutex run_mutex_;
  Job job_ = nullptr;
  void* job_fn_ = nullptr;
  bool stopping_ = false;
  Mapping scratch_;
  size_t scratch_stride_ = 0;
  Gate start_;
  Gate met_;
  alignas(kCacheLine) std::atomic<int> arrived_{0};
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
