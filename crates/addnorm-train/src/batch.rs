//! Examples as a model takes them.

use std::sync::Arc;

use addnorm_data::{Examples, IGNORED as UNASKED, Task};
use addnorm_nn::{IGNORED, Inputs, StackKind, Tokens};

/// Inputs with their targets.
#[derive(Debug, Clone)]
pub struct Batch {
    /// What is read.
    pub inputs: Inputs,
    /// What is to be said.
    pub targets: Arc<[u32]>,
}

/// What a kind of stack is trained to do.
pub fn task_of(stack: StackKind) -> Task {
    match stack {
        StackKind::Decoder => Task::NextToken,
        StackKind::Encoder => Task::HiddenTokens,
        StackKind::Pair => Task::SecondText,
        StackKind::Vision => Task::ImageClass,
    }
}

// One number means "nothing asked" on both sides.
const _: () = assert!(UNASKED == IGNORED);

impl From<Examples> for Batch {
    fn from(examples: Examples) -> Self {
        match examples {
            Examples::Text { inputs, targets, shape } => {
                Batch { inputs: Inputs::Text(Tokens { numbers: inputs.into(), shape }), targets: targets.into() }
            }
            Examples::Pairs(pairs) => Batch {
                inputs: Inputs::Pair {
                    source: Tokens { numbers: pairs.source.into(), shape: pairs.source_shape },
                    visible: pairs.visible.into(),
                    target: Tokens { numbers: pairs.target.into(), shape: pairs.target_shape },
                },
                targets: pairs.said.into(),
            },
            Examples::Images { values, shape, targets } => {
                Batch { inputs: Inputs::Patches { values: values.into(), shape }, targets: targets.into() }
            }
        }
    }
}

impl Batch {
    /// Targets that count.
    pub fn counted(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORED).count()
    }

    /// In at most `parts` parts of whole sequences, with the sequences before each.
    pub fn parts(&self, parts: usize) -> Vec<(Batch, usize)> {
        let (sequences, each) = (self.inputs.batch(), self.inputs.targets());
        let size = sequences.div_ceil(parts.max(1)).max(1);
        (0..sequences)
            .step_by(size)
            .map(|from| {
                let to = (from + size).min(sequences);
                let targets = self.targets[from * each..to * each].into();
                (Batch { inputs: self.inputs.part(from, to), targets }, from)
            })
            .collect()
    }
}
