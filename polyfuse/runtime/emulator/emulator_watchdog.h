// A limit of time for kernels that run for ever without waiting: a timer whose signal comes to this thread
// alone, and whose handler leaves the kernel as a thread that fails does. Linux only.

#include <csignal>
#include <ctime>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#endif

// Called in the handler: does not return if a kernel was running.
void pf_emu_time_is_up();

namespace {

#ifdef __linux__
class Watchdog {
 public:
  explicit Watchdog(int64_t milliseconds) {
    struct sigaction action = {};
    action.sa_handler = [](int) { pf_emu_time_is_up(); };
    action.sa_flags = SA_RESTART | SA_NODEFER;  // the handler is left without an end
    sigaction(kSignal, &action, &before_);
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kSignal;
    event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer_)) abort();
    struct itimerspec time = {};
    time.it_value.tv_sec = milliseconds / 1000;
    time.it_value.tv_nsec = milliseconds % 1000 * 1000000;
    time.it_interval.tv_nsec = 1000000;  // it may come at a bad time, and is tried again
    timer_settime(timer_, 0, &time, nullptr);
  }
  ~Watchdog() {
    timer_delete(timer_);
    signal(kSignal, SIG_IGN);  // drops one that is under way
    sigaction(kSignal, &before_, nullptr);
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  const int kSignal = SIGRTMAX - 3;
  timer_t timer_;
  struct sigaction before_;
};
#else
class Watchdog {
 public:
  explicit Watchdog(int64_t) {}
};
#endif

}  // namespace
