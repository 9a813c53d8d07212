//! How many threads a kernel may use.

use std::cell::Cell;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with every kernel inside it on this thread only. For a caller that has parted the work among
/// the threads itself: each then keeps its numbers in its own cache and never waits for another.
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(true));
    work()
}

/// How many threads a kernel that is called here may use.
pub fn threads() -> usize {
    if ALONE.get() { 1 } else { rayon::current_num_threads() }
}

/// Whether a kernel may use other threads of the current pool.
pub(crate) fn is_shared() -> bool {
    threads() > 1
}

/// The least number of chunks that a parallel loop gives to one thread.
pub(crate) fn grain() -> usize {
    if is_shared() { 1 } else { usize::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_alone_stays_on_its_thread_and_the_mark_goes_away() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads start");
        pool.install(|| {
            assert!(is_shared());
            alone(|| assert!(!is_shared() && grain() == usize::MAX));
            let _ = std::panic::catch_unwind(|| alone(|| panic!("a kernel failed")));
            assert!(is_shared());
        });
    }
}
