//! Rows of a table by number.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor, TensorData};

use crate::buffer::Buffer;
use crate::flex::{self, Kernel, for_element};
use crate::slot::Slot;

#[derive(Debug, Clone)]
struct Embedding {
    tokens: Arc<[u32]>,
    shape: [usize; 2],
}

/// `table[token]` for every token.
///
/// # Shapes
/// - table: `[rows, d]`; tokens: `batch * time` numbers in the order of `shape = [batch, time]`; the result is
///   `[batch, time, d]`.
///
/// # Panics
/// If the count does not match the shape or a token is not in the table.
pub fn embedding(table: Tensor<2>, tokens: Arc<[u32]>, shape: [usize; 2]) -> Tensor<3> {
    let [rows, width] = table.dims();
    assert_eq!(tokens.len(), shape[0] * shape[1], "one token a position");
    assert!(tokens.iter().all(|&token| (token as usize) < rows), "tokens are in the table");
    if flex::is_flex(&table) {
        return flex::run(Embedding { tokens, shape }, vec![flex::input(table)]);
    }
    let indices: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [tokens.len()]), &table.device());
    table.select(0, indices).reshape([shape[0], shape[1], width])
}

impl Kernel for Embedding {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let table = flex::slice::<E>(&inputs[0]);
            let width = flex::dims(&inputs[0])[1];
            let mut y = Buffer::<E>::take(self.tokens.len() * width);
            for (y, &token) in y.chunks_exact_mut(width.max(1)).zip(self.tokens.iter()) {
                y.copy_from_slice(&table[token as usize * width..][..width]);
            }
            (y.into_tensor(&[self.shape[0], self.shape[1], width]), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let dy = flex::slice::<E>(&upstream);
            let shape = flex::dims(&inputs[0]);
            let width = shape[1];
            let mut dtable = Buffer::<E>::zeros(shape[0] * width);
            // In the order of positions, so that repeated tokens add up the same way every time.
            for (&token, dy) in self.tokens.iter().zip(dy.chunks_exact(width.max(1))) {
                for (d, &dy) in dtable[token as usize * width..][..width].iter_mut().zip(dy) {
                    *d += dy;
                }
            }
            slots[0].put(1.0, &dtable.into_tensor(&shape));
        })
    }
}
