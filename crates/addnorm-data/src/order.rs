//! The order in which examples are shown.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::windows::Cursor;

/// Every number below `len` once an epoch, in an order that the seed and the epoch decide.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    len: usize,
    seed: u64,
    cursor: Cursor,
    numbers: Vec<u32>,
}

impl Order {
    pub(crate) fn new(len: usize, seed: u64, cursor: Cursor) -> Self {
        let mut order = Order { len, seed, cursor, numbers: Vec::new() };
        order.shuffle();
        order
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    fn shuffle(&mut self) {
        self.numbers = (0..self.len as u32).collect();
        let seed = self.seed ^ self.cursor.epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.numbers.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }

    /// The next number, with the epoch that it belongs to.
    pub(crate) fn next(&mut self) -> (usize, u64) {
        if self.cursor.position >= self.numbers.len() {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, position: 0 };
            self.shuffle();
        }
        let number = self.numbers[self.cursor.position] as usize;
        self.cursor.position += 1;
        (number, self.cursor.epoch)
    }
}

/// At most `limit` of `count` numbers, evenly spread.
pub(crate) fn spread(count: usize, limit: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(limit.max(1));
    (0..shown).map(move |number| number * count / shown)
}
