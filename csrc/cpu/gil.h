// Running without the GIL, also while the interpreter exits.
//
// A daemon thread that asks for the GIL after the interpreter began to finalise is ended by Python
// (before 3.14) by unwinding its stack; C++ frames that may not throw abort the process then. So
// the exit hook waits until every thread that is in native code is back, and threads that come
// later sleep for the rest of the process.
#pragma once
#include <Python.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace vllm {

class ReleasedGil {
 public:
  ReleasedGil() {
    state().outside.fetch_add(1);
    thread_ = PyEval_SaveThread();
    if (must_stop()) stop();
  }
  ~ReleasedGil() {
    if (must_stop()) stop();
    PyEval_RestoreThread(thread_);
    state().outside.fetch_sub(1);
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  // For module initialisation: a forked child has none of the other threads.
  static void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] { state().outside = 0; });
  }

  // The exit hook; called with the GIL held.
  static void stop_other_threads() {
    state().exiting_thread = std::this_thread::get_id();
    state().exiting = true;
    PyThreadState* thread = PyEval_SaveThread();
    while (state().outside > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    PyEval_RestoreThread(thread);
  }

 private:
  struct State {
    std::atomic<int> outside{0};   // threads between giving the GIL up and having it again
    std::atomic<bool> exiting{false};
    std::thread::id exiting_thread;
  };
  static State& state() {
    static State* shared = new State;   // never destroyed: threads may outlive statics
    return *shared;
  }
  static bool must_stop() {
    return state().exiting && std::this_thread::get_id() != state().exiting_thread;
  }
  [[noreturn]] static void stop() {
    state().outside.fetch_sub(1);
    for (;;) pause();
  }

  PyThreadState* thread_;
};

}  // namespace vllm
