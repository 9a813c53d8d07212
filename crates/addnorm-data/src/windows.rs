//! Handing tokens out in batches.

use serde::{Deserialize, Serialize};

use crate::order::{Order, spread};

/// Where in the data a run is. Enough to go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// Times that all windows have been seen.
    pub epoch: u64,
    /// Windows of this epoch already seen.
    pub position: usize,
}

/// The training tokens as windows of `context` inputs, each with its next token as the target. Windows
/// follow one another without a gap; an epoch shows each once, in an order that the seed decides.
#[derive(Debug, Clone)]
pub struct Windows<'a> {
    tokens: &'a [u32],
    context: usize,
    order: Order,
}

impl<'a> Windows<'a> {
    /// Windows over `tokens` from `cursor` on.
    ///
    /// # Panics
    /// If there is not one whole window.
    pub fn new(tokens: &'a [u32], context: usize, seed: u64, cursor: Cursor) -> Self {
        assert!(context > 0 && tokens.len() > context, "there is a window");
        let order = Order::new((tokens.len() - 1) / context, seed, cursor);
        Self { tokens, context, order }
    }

    /// How many windows an epoch has.
    pub fn len(&self) -> usize {
        (self.tokens.len() - 1) / self.context
    }

    /// Never: there is always a window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens at the end that fill no window and so are no target.
    pub fn dropped(&self) -> usize {
        self.tokens.len() - 1 - self.len() * self.context
    }

    /// Where it is.
    pub fn cursor(&self) -> Cursor {
        self.order.cursor()
    }

    /// The next `batch` windows: inputs and targets, `batch * context` each. An epoch's end may fall inside.
    pub fn next_batch(&mut self, batch: usize) -> (Vec<u32>, Vec<u32>) {
        let mut inputs = Vec::with_capacity(batch * self.context);
        let mut targets = Vec::with_capacity(batch * self.context);
        for _ in 0..batch {
            let start = self.order.next().0 * self.context;
            inputs.extend_from_slice(&self.tokens[start..start + self.context]);
            targets.extend_from_slice(&self.tokens[start + 1..start + 1 + self.context]);
        }
        (inputs, targets)
    }
}

/// At most `limit` windows of the validation tokens, evenly spread over them: inputs and targets of each.
pub fn validation_windows(tokens: &[u32], context: usize, limit: usize) -> Vec<(&[u32], &[u32])> {
    let count = (tokens.len() - 1) / context;
    spread(count, limit)
        .map(|window| {
            let start = window * context;
            (&tokens[start..start + context], &tokens[start + 1..start + 1 + context])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_uses_every_window_once_and_says_what_it_drops() {
        let tokens: Vec<u32> = (0..103).collect();
        let mut windows = Windows::new(&tokens, 10, 1, Cursor::default());
        assert_eq!((windows.len(), windows.dropped()), (10, 2));
        let (inputs, targets) = windows.next_batch(10);
        let mut seen = inputs.clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u32>>());
        assert!(inputs.iter().zip(&targets).all(|(input, target)| input + 1 == *target));
        let (again, _) = windows.next_batch(10);
        assert_ne!(inputs, again, "another epoch, another order");
    }

    #[test]
    fn a_cursor_goes_on_where_it_was() {
        let tokens: Vec<u32> = (0..777).collect();
        let mut straight = Windows::new(&tokens, 8, 5, Cursor::default());
        let batches: Vec<_> = (0..40).map(|_| straight.next_batch(6)).collect();
        let mut first = Windows::new(&tokens, 8, 5, Cursor::default());
        for expected in &batches[..17] {
            assert_eq!(first.next_batch(6), *expected);
        }
        let mut resumed = Windows::new(&tokens, 8, 5, first.cursor());
        for expected in &batches[17..] {
            assert_eq!(resumed.next_batch(6), *expected);
        }
    }

    #[test]
    fn validation_windows_are_spread_over_the_whole_part() {
        let tokens: Vec<u32> = (0..1001).collect();
        let starts =
            |limit| validation_windows(&tokens, 10, limit).iter().map(|window| window.0[0]).collect::<Vec<_>>();
        assert_eq!(starts(4), [0, 250, 500, 750]);
        assert_eq!(starts(1000).len(), 100);
        assert_eq!(starts(0), [0]);
    }

    #[test]
    fn exactly_one_window_is_enough() {
        let tokens: Vec<u32> = (0..65).collect();
        let mut windows = Windows::new(&tokens, 64, 0, Cursor::default());
        assert_eq!(windows.len(), 1);
        assert_eq!(windows.next_batch(2).0.len(), 128);
    }
}
