#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace vllm {
namespace {

// Longer than the gap between two ops, shorter than what a sleeping client would notice on its
// core: waking a thread costs 5 to 50 us.
constexpr auto kSpinTime = std::chrono::microseconds(80);
constexpr int kPausesPerClockRead = 32;

// Among many threads, looking at everybody's share costs more than giving them a moment.
constexpr int kFewThreads = 4;
constexpr int kPausesBeforeHelping = 100;

thread_local bool inside_job = false;

void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_to_cpu(std::thread& thread, int cpu) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Can fail if the allowed set shrank after the check in check_cpus; unpinned is then right.
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
#else
  (void)thread;
  (void)cpu;
#endif
}

void check_cpus(int num_threads, const std::vector<int>& cpus) {
  if (num_threads < 1 || num_threads > ThreadPool::kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) +
                                "; it must be between 1 and " +
                                std::to_string(ThreadPool::kMaxThreads));
  }
  if (cpus.empty()) return;
  if (cpus.size() != static_cast<size_t>(num_threads)) {
    throw std::invalid_argument("cpus has " + std::to_string(cpus.size()) + " entries for " +
                                std::to_string(num_threads) + " threads; give one per thread");
  }
#ifdef __linux__
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || (known && !CPU_ISSET(cpu, &allowed))) {
      throw std::invalid_argument("cpu " + std::to_string(cpu) +
                                  " is not one that this process may use");
    }
  }
#endif
}

}  // namespace

// ---- Gate -------------------------------------------------------------------------------------
// A sleeper announces itself and then looks at the value; `advance` changes the value and then
// looks for sleepers. Both orders are sequentially consistent, so one of the two sees the other.

void Gate::advance() {
  value_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  { std::lock_guard<std::mutex> lock(mutex_); }
  moved_.notify_all();
}

bool Gate::spin_past(uint32_t seen, int pauses) const {
  for (int i = 0; i < pauses; ++i) {
    if (value() != seen) return true;
    cpu_pause();
  }
  return false;
}

void Gate::wait_past(uint32_t seen) {
  if (value() != seen) return;
  const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
  do {
    if (spin_past(seen, kPausesPerClockRead)) return;
  } while (std::chrono::steady_clock::now() < give_up);

  sleepers_.fetch_add(1);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    moved_.wait(lock, [&] { return value() != seen; });
  }
  sleepers_.fetch_sub(1);
}

// ---- ThreadPool -------------------------------------------------------------------------------

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads), claims_(static_cast<size_t>(num_threads)) {
  workers_.reserve(static_cast<size_t>(num_threads_ - 1));
  for (int ith = 1; ith < num_threads_; ++ith) {
    workers_.emplace_back([this, ith] { worker(ith); });
    if (!cpus.empty()) pin_to_cpu(workers_.back(), cpus[static_cast<size_t>(ith)]);
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  posted_.advance_quietly();
  posted_.advance();
  for (std::thread& thread : workers_) thread.join();
}

std::unique_lock<std::mutex> ThreadPool::begin(Share share, void* fn, int num_phases,
                                               size_t scratch_bytes) {
  if (inside_job) throw std::logic_error("the thread pool was used from inside one of its jobs");
  std::unique_lock<std::mutex> turn(run_mutex_, std::defer_lock);
  if (num_threads_ > 1 || scratch_bytes > 0) turn.lock();
  reserve_scratch(scratch_bytes);
  inside_job = true;
  if (num_threads_ > 1) {
    own_job_ = {share, fn, num_phases, phases_.value()};
    post(own_job_);
  }
  return turn;
}

void ThreadPool::end() { inside_job = false; }

// Readers take what they read only if the gate was even and did not move meanwhile.
void ThreadPool::post(const Job& job) {
  posted_.advance_quietly();
  job_.share = job.share;
  job_.fn = job.fn;
  job_.num_phases = job.num_phases;
  job_.first_phase = job.first_phase;
  posted_.advance();
}

uint32_t ThreadPool::read_job(uint32_t seen, Job& job) {
  for (;;) {
    posted_.wait_past(seen);
    const uint32_t now = posted_.value();
    job = {job_.share, job_.fn, job_.num_phases, job_.first_phase};
    if (now % 2 == 0 && posted_.value() == now) return now;
    cpu_pause();
  }
}

// For a thread that comes late the phase is over: no share can be claimed, nothing is waited for.
void ThreadPool::run_phase(const Job& job, int phase, int ith) {
  const uint32_t before = job.first_phase + static_cast<uint32_t>(phase);
  try_share(job, phase, ith);
  if (num_threads_ > kFewThreads && phases_.spin_past(before, kPausesBeforeHelping)) return;
  for (int i = 1; i < num_threads_; ++i) try_share(job, phase, (ith + i) % num_threads_);
  phases_.wait_past(before);
}

void ThreadPool::try_share(const Job& job, int phase, int share) {
  uint32_t before = job.first_phase + static_cast<uint32_t>(phase);
  std::atomic<uint32_t>& claimed = claims_[static_cast<size_t>(share)].phase;
  if (claimed.load() != before || !claimed.compare_exchange_strong(before, before + 1)) return;
  job.share(job.fn, phase, share, num_threads_);
  if (shares_done_.fetch_add(1) + 1 < num_threads_) return;
  shares_done_ = 0;
  phases_.advance();
}

void ThreadPool::reserve_scratch(size_t bytes) {
  const size_t stride = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (stride <= scratch_stride_) return;
  scratch_ = Mapping(stride * static_cast<size_t>(num_threads_));
  scratch_stride_ = stride;
}

void ThreadPool::worker(int ith) {
  inside_job = true;
  uint32_t seen = 0;
  Job job{};
  for (;;) {
    seen = read_job(seen, job);
    if (stopping_) return;
    for (int phase = 0; phase < job.num_phases; ++phase) run_phase(job, phase, ith);
  }
}

// ---- the pool of the process ------------------------------------------------------------------
// The state is never destroyed: at exit other threads may still be using it, and after a fork the
// child must forget threads that it does not have, without joining them.

namespace {

struct PoolState {
  int num_threads = 1;
  std::vector<int> cpus;
  std::shared_ptr<ThreadPool> pool;
};

void forget_pool_in_child();

PoolState*& state() {
  static PoolState* current = [] {
    pthread_atfork(nullptr, nullptr, forget_pool_in_child);
    return new PoolState;
  }();
  return current;
}

void forget_pool_in_child() {
  auto* fresh = new PoolState;
  fresh->num_threads = state()->num_threads;
  fresh->cpus = state()->cpus;
  state() = fresh;
  inside_job = false;
}

}  // namespace

std::shared_ptr<ThreadPool> current_pool() {
  PoolState* s = state();
  if (!s->pool) s->pool = std::make_shared<ThreadPool>(s->num_threads, s->cpus);
  return s->pool;
}

void configure_pool(int num_threads, std::vector<int> cpus) {
  check_cpus(num_threads, cpus);
  PoolState* s = state();
  s->pool.reset();
  s->num_threads = num_threads;
  s->cpus = std::move(cpus);
}

void shut_down_pool() { configure_pool(1, {}); }

}  // namespace vllm
