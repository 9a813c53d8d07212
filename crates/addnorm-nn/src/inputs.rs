//! What a model reads.

use std::sync::Arc;

/// Token numbers of some sequences of one length.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// `batch * time` numbers, sequence after sequence.
    pub numbers: Arc<[u32]>,
    /// `[batch, time]`.
    pub shape: [usize; 2],
}

/// A target that counts for nothing: padding, or a token that was not hidden.
pub const IGNORED: u32 = u32::MAX;

/// Inputs of some sequences of one length, by the kind of stack.
#[derive(Debug, Clone)]
pub enum Inputs {
    /// Of a decoder or an encoder.
    Text(Tokens),
    /// Of a pair: the text it reads, and the one it writes, each token of which it says from those before.
    Pair {
        /// What the encoder reads.
        source: Tokens,
        /// Which of its tokens are no padding, `batch * source time` of them.
        visible: Arc<[bool]>,
        /// What the decoder reads.
        target: Tokens,
    },
    /// Images in patches.
    Patches {
        /// `batch * patches * patch width` numbers.
        values: Arc<[f32]>,
        /// `[batch, patches, patch width]`.
        shape: [usize; 3],
    },
}

impl From<&Tokens> for Inputs {
    fn from(tokens: &Tokens) -> Self {
        Inputs::Text(tokens.clone())
    }
}

impl From<Tokens> for Inputs {
    fn from(tokens: Tokens) -> Self {
        Inputs::Text(tokens)
    }
}

impl From<&Inputs> for Inputs {
    fn from(inputs: &Inputs) -> Self {
        inputs.clone()
    }
}

impl Tokens {
    fn part(&self, from: usize, to: usize) -> Tokens {
        let time = self.shape[1];
        Tokens { numbers: self.numbers[from * time..to * time].into(), shape: [to - from, time] }
    }
}

impl Inputs {
    /// Sequences.
    pub fn batch(&self) -> usize {
        match self {
            Inputs::Text(tokens) | Inputs::Pair { target: tokens, .. } => tokens.shape[0],
            Inputs::Patches { shape, .. } => shape[0],
        }
    }

    /// Targets of one sequence.
    pub fn targets(&self) -> usize {
        match self {
            Inputs::Text(tokens) | Inputs::Pair { target: tokens, .. } => tokens.shape[1],
            Inputs::Patches { .. } => 1,
        }
    }

    /// Sequences `from..to`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn part(&self, from: usize, to: usize) -> Inputs {
        match self {
            Inputs::Text(tokens) => Inputs::Text(tokens.part(from, to)),
            Inputs::Pair { source, visible, target } => {
                let time = source.shape[1];
                Inputs::Pair {
                    source: source.part(from, to),
                    visible: visible[from * time..to * time].into(),
                    target: target.part(from, to),
                }
            }
            Inputs::Patches { values, shape: [_, patches, width] } => {
                let size = patches * width;
                Inputs::Patches { values: values[from * size..to * size].into(), shape: [to - from, *patches, *width] }
            }
        }
    }
}
