//! Memory that is used again.
//!
//! A training step needs the same buffers as the step before it. Fresh memory costs a page fault for every
//! 4096 bytes and a clearing pass; memory that was freed by the last step costs neither. Every thread keeps
//! what it freed, by size, and hands it out again with whatever numbers it last held.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, Shape};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

use crate::element::Element;

/// One cache line.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

const LINE: usize = size_of::<Line>();

/// Bytes taken from the system so far by all threads: a step that repeats the one before it takes none.
static FRESH: AtomicU64 = AtomicU64::new(0);

/// Bytes that kernels have taken from the system since the process began. What they took from their own
/// store does not count.
pub fn fresh_bytes() -> u64 {
    FRESH.load(Relaxed)
}

/// What one thread has freed.
#[derive(Default)]
struct Store {
    /// By number of lines: when the size was last asked for, and the memory.
    idle: HashMap<usize, (u64, Vec<Vec<Line>>)>,
    clock: u64,
    live: usize,
    idle_lines: usize,
    peak: usize,
}

impl Store {
    fn take(&mut self, lines: usize) -> Vec<Line> {
        self.clock += 1;
        self.live += lines;
        let (used, held) = self.idle.entry(lines).or_default();
        *used = self.clock;
        if let Some(memory) = held.pop() {
            self.idle_lines -= lines;
            return memory;
        }
        // Idle memory of sizes that have gone out of use makes room: together with what is live, it never
        // exceeds by more than half what was once live at the same time. The half is for sizes that
        // are needed most at different moments of a step.
        self.peak = self.peak.max(self.live);
        while self.live + self.idle_lines > self.peak + self.peak / 2 {
            let oldest = self.idle.iter().filter(|(_, (_, held))| !held.is_empty()).min_by_key(|(_, (used, _))| *used);
            let Some(size) = oldest.map(|(&size, _)| size) else { break };
            if let Some((_, held)) = self.idle.get_mut(&size) {
                held.pop();
                self.idle_lines -= size;
            }
        }
        FRESH.fetch_add((lines * LINE) as u64, Relaxed);
        bytemuck::zeroed_vec(lines)
    }

    fn release(&mut self) {
        self.idle.clear();
        (self.idle_lines, self.peak) = (0, self.live);
    }

    fn give_back(&mut self, memory: Vec<Line>) {
        self.live -= memory.len();
        self.idle_lines += memory.len();
        self.idle.entry(memory.len()).or_default().1.push(memory);
    }
}

type Home = Arc<Mutex<Store>>;

thread_local! {
    static HOME: RefCell<Home> = RefCell::default();
}

/// Returns to the system what this thread has freed. For after work of other sizes than what follows.
pub fn release_idle() {
    HOME.with_borrow(|home| home.lock().unwrap_or_else(PoisonError::into_inner).release());
}

/// Memory that goes back to the thread it came from.
struct Lines {
    memory: Vec<Line>,
    home: Home,
}

impl Lines {
    fn take(bytes: usize) -> Self {
        let home = HOME.with_borrow(Arc::clone);
        let memory = match bytes.div_ceil(LINE) {
            0 => Vec::new(),
            lines => home.lock().unwrap_or_else(PoisonError::into_inner).take(lines),
        };
        Lines { memory, home }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.memory.is_empty() {
            let memory = std::mem::take(&mut self.memory);
            self.home.lock().unwrap_or_else(PoisonError::into_inner).give_back(memory);
        }
    }
}

/// Numbers to be written: what they are at first is not said.
pub(crate) struct Buffer<E> {
    lines: Lines,
    length: usize,
    element: std::marker::PhantomData<E>,
}

impl<E: Element> Buffer<E> {
    /// Holds whatever its memory last held. For results that are written in full.
    pub(crate) fn take(length: usize) -> Self {
        Buffer { lines: Lines::take(length * size_of::<E>()), length, element: std::marker::PhantomData }
    }

    /// Holds zeros. For results that are added to.
    pub(crate) fn zeros(length: usize) -> Self {
        let mut buffer = Self::take(length);
        buffer.fill(E::default());
        buffer
    }

    /// Holds a copy.
    pub(crate) fn copy_of(values: &[E]) -> Self {
        let mut buffer = Self::take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    /// A tensor that takes the memory over, and gives it back when the last that holds it goes.
    ///
    /// # Panics
    /// If the shape does not have as many elements.
    pub(crate) fn into_tensor(self, shape: &[usize]) -> FlexTensor {
        assert_eq!(shape.iter().product::<usize>(), self.length, "the shape fits the numbers");
        let bytes = self.length * size_of::<E>();
        // SAFETY: all of the controller's memory is initialised (it began as zeros and is only ever written
        // through slices of plain numbers), and it holds at least `bytes` of it.
        let bytes = unsafe { Bytes::from_controller(Box::new(self.lines), bytes) };
        FlexTensor::new(bytes, Layout::contiguous(Shape::from(shape.to_vec())), E::dtype())
    }
}

impl<E: Element> Deref for Buffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &bytemuck::cast_slice(&self.lines.memory)[..self.length]
    }
}

impl<E: Element> DerefMut for Buffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut bytemuck::cast_slice_mut(&mut self.lines.memory)[..self.length]
    }
}

impl AllocationController for Lines {
    fn alloc_align(&self) -> usize {
        // All that is promised: Burn copies tensors with the alignment that is said here, and knows none above this.
        align_of::<u128>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.memory);
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`; the caller promises to write initialised bytes only.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.memory);
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and the slice lives as long as the borrow of self.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

/// A contiguous copy of a tensor's numbers in memory of the kernels.
pub(crate) fn copy<E: Element>(tensor: &FlexTensor) -> FlexTensor {
    Buffer::copy_of(crate::flex::slice::<E>(tensor)).into_tensor(tensor.shape().as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again() {
        std::thread::spawn(|| {
            let mut first = Buffer::<f32>::take(1000);
            first.fill(3.0);
            let address = first.as_ptr();
            let tensor = first.into_tensor(&[10, 100]);
            assert_eq!(tensor.as_slice::<f32>().expect("it is contiguous")[999], 3.0);
            let copy = tensor.clone();
            drop(tensor);
            assert_ne!(Buffer::<f32>::take(1000).as_ptr(), address, "a tensor still holds it");
            drop(copy);
            let again = Buffer::<f32>::take(1000);
            assert_eq!(again.as_ptr(), address);
            assert!(Buffer::<f32>::zeros(1000).iter().all(|&x| x == 0.0));
            assert_eq!(again.as_ptr() as usize % 64, 0);
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn idle_memory_stays_near_the_most_that_was_live() {
        std::thread::spawn(|| {
            for size in [1000, 2000, 3000, 500, 4000] {
                drop(Buffer::<f64>::take(size));
            }
            let home = HOME.with_borrow(Arc::clone);
            let store = home.lock().expect("no thread failed");
            assert_eq!(store.live, 0);
            assert!(store.idle_lines >= 4000 / 8 && store.idle_lines <= 6000 / 8, "{}", store.idle_lines);
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn idle_memory_can_be_returned() {
        std::thread::spawn(|| {
            let held = Buffer::<f64>::zeros(800);
            drop(Buffer::<f64>::take(1600));
            release_idle();
            let home = HOME.with_borrow(Arc::clone);
            let counts = |store: &Store| (store.live, store.idle_lines, store.peak);
            assert_eq!(counts(&home.lock().expect("no thread failed")), (100, 0, 100));
            drop(held);
            assert_eq!(counts(&home.lock().expect("no thread failed")), (0, 100, 100));
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn a_shared_tensor_is_copied_before_it_is_written() {
        let mut tensor = Buffer::<f32>::zeros(7).into_tensor(&[7]);
        let other = tensor.clone();
        tensor.storage_mut::<f32>()[6] = 1.0;
        assert_eq!(other.as_slice::<f32>().expect("it is contiguous"), [0.0; 7]);
        assert_eq!(tensor.as_slice::<f32>().expect("it is contiguous")[6], 1.0);
    }

    #[test]
    fn empty_buffers_are_allowed() {
        let empty = Buffer::<f32>::take(0).into_tensor(&[0, 3]);
        assert_eq!(empty.as_slice::<f32>().expect("it is contiguous").len(), 0);
    }
}
