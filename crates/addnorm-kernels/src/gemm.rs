//! Matrix products on slices, with strides.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

use gemm::Parallelism;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::parallel::is_shared;

thread_local! {
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Multiplications and additions of the matrix products that the CPU kernels have made on this thread.
pub fn product_operations() -> u64 {
    OPERATIONS.get()
}

/// A product that was made: its sizes and where its matrices lay. For timing the same products by themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    sizes: (usize, usize, usize),
    places: [At; 3],
    adds: bool,
    shared: bool,
}

/// The products that each thread has made since recording began; none while nothing is recorded.
static RECORD: Mutex<Option<HashMap<ThreadId, Vec<Product>>>> = Mutex::new(None);
static RECORDS: AtomicBool = AtomicBool::new(false);

/// Runs `work` and writes down its products in `f32` and `f64` alike, by the thread that made them. What other threads
/// do meanwhile is written down too; for benchmarks.
pub fn record_products<R>(work: impl FnOnce() -> R) -> (R, Vec<Vec<Product>>) {
    let record = || RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    *record() = Some(HashMap::new());
    RECORDS.store(true, Relaxed);
    let result = work();
    RECORDS.store(false, Relaxed);
    (result, record().take().unwrap_or_default().into_values().collect())
}

/// Makes the products again, on `f32` numbers of no meaning, in the order in which they were made.
pub fn repeat_products(products: &[Product]) {
    let mut largest = [0; 3];
    for Product { sizes: (m, k, n), places: [a, b, c], .. } in products {
        for (largest, last) in largest.iter_mut().zip([a.last(*m, *k), b.last(*k, *n), c.last(*m, *n)]) {
            *largest = (*largest).max(last + 1);
        }
    }
    let [a, b, mut c] = largest.map(Buffer::<f32>::zeros);
    for &Product { sizes, places, adds, shared } in products {
        let threads = if shared { Threads::Pool } else { Threads::One };
        product(sizes, (&a, places[0]), (&b, places[1]), (&mut c, places[2]), adds, 1.0, threads);
    }
}

/// A matrix inside a slice: where it starts and how far apart its rows and columns are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct At {
    pub offset: usize,
    pub row: usize,
    pub column: usize,
}

impl At {
    /// Row-major from the start of the slice.
    pub(crate) fn rows(width: usize) -> Self {
        At { offset: 0, row: width, column: 1 }
    }

    /// The transpose of a row-major matrix.
    pub(crate) fn columns(width: usize) -> Self {
        At { offset: 0, row: 1, column: width }
    }

    pub(crate) fn from(self, offset: usize) -> Self {
        At { offset, ..self }
    }

    fn last(self, rows: usize, columns: usize) -> usize {
        self.offset + (rows - 1) * self.row + (columns - 1) * self.column
    }
}

/// Whether to spread one product over the threads of the current pool.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Threads {
    One,
    Pool,
}

/// `c[m, n] = scale * a[m, k] * b[k, n]`, or added to what `c` holds.
pub(crate) fn product<E: Element>(
    (m, k, n): (usize, usize, usize),
    a: (&[E], At),
    b: (&[E], At),
    c: (&mut [E], At),
    add: bool,
    scale: E,
    threads: Threads,
) {
    if m == 0 || n == 0 {
        return;
    }
    if RECORDS.load(Relaxed)
        && let Some(record) = RECORD.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
    {
        let made = Product { sizes: (m, k, n), places: [a.1, b.1, c.1], adds: add, shared: threads == Threads::Pool };
        record.entry(std::thread::current().id()).or_default().push(made);
    }
    OPERATIONS.set(OPERATIONS.get() + 2 * (m * k * n) as u64);
    assert!(c.1.last(m, n) < c.0.len(), "the product does not fit its place");
    if k > 0 {
        assert!(a.1.last(m, k) < a.0.len() && b.1.last(k, n) < b.0.len(), "a factor is larger than its slice");
    }
    // Two elements of c never share an address: that would make the result depend on the order of writes.
    assert!(c.1.column == 1 && c.1.row >= n, "the result is row-major");
    // Small products finish before a second thread has woken up.
    let parallelism = match threads {
        Threads::Pool if m * k * n > 64 * 64 * 64 && is_shared() => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    // SAFETY: every address that the call reads or writes is `offset + i * row + j * column` with `i` and `j`
    // below the sizes given, whose largest was asserted above to lie inside its slice; `c` is borrowed
    // mutably, so it overlaps neither `a` nor `b`; all three hold initialised `E`, which is `f32` or `f64`,
    // both of which the library implements.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.0.as_mut_ptr().add(c.1.offset),
            c.1.column as isize,
            c.1.row as isize,
            add,
            a.0.as_ptr().add(if k > 0 { a.1.offset } else { 0 }),
            a.1.column as isize,
            a.1.row as isize,
            b.0.as_ptr().add(if k > 0 { b.1.offset } else { 0 }),
            b.1.column as isize,
            b.1.row as isize,
            E::of(1.0),
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_shapes_agree_with_the_definition() {
        for (m, k, n) in [(1, 1, 1), (1, 3, 5), (7, 1, 2), (65, 3, 17), (3, 65, 1), (33, 31, 65)] {
            let a: Vec<f64> = (0..m * k).map(|i| (i as f64 * 0.37).sin()).collect();
            let b: Vec<f64> = (0..k * n).map(|i| (i as f64 * 0.71).cos()).collect();
            let mut c = vec![1.0; m * n];
            product((m, k, n), (&a, At::rows(k)), (&b, At::rows(n)), (&mut c, At::rows(n)), true, 2.0, Threads::Pool);
            for i in 0..m {
                for j in 0..n {
                    let exact = 1.0 + 2.0 * (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum::<f64>();
                    assert!((c[i * n + j] - exact).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn empty_products_write_nothing_or_zeros() {
        let mut c = vec![7.0f32; 4];
        product(
            (0, 3, 4),
            (&[], At::rows(3)),
            (&[1.0; 12], At::rows(4)),
            (&mut c, At::rows(4)),
            false,
            1.0,
            Threads::One,
        );
        assert_eq!(c, [7.0; 4]);
        product((2, 0, 2), (&[], At::rows(0)), (&[], At::rows(2)), (&mut c, At::rows(2)), false, 1.0, Threads::One);
        assert_eq!(c, [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_result_beyond_its_slice_is_refused() {
        let mut c = vec![0.0f32; 3];
        product(
            (2, 1, 2),
            (&[1.0; 2], At::rows(1)),
            (&[1.0; 2], At::rows(2)),
            (&mut c, At::rows(2)),
            false,
            1.0,
            Threads::One,
        );
    }
}
