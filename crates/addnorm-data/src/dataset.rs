//! Examples of any kind, handed out in batches.

use crate::corpus::{Corpus, CorpusSummary, DataConfig, DataError, Vocabulary};
use crate::images::Images;
use crate::masked::hide;
use crate::order::{Order, spread};
use crate::pairs::{PairBatch, Pairs, validation_used};
use crate::windows::{Cursor, Windows, validation_windows};

/// A target that counts for nothing: padding, or a token that was not hidden.
pub const IGNORED: u32 = u32::MAX;

/// Where the masks of validation windows come from: the same in every run, so that losses can be compared.
const VALIDATION_MASKS: u64 = 0x5eed_0f00_7a1d;

/// What a model is to learn from examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// The next token.
    NextToken,
    /// Hidden tokens.
    HiddenTokens,
    /// A second text from a first.
    SecondText,
    /// The class of an image.
    ImageClass,
}

/// Examples for one task.
#[derive(Debug, Clone)]
pub enum Dataset {
    /// Text, each token of which is said from those before.
    NextToken(Corpus),
    /// Text, hidden tokens of which are said from those around.
    HiddenTokens(Corpus),
    /// Pairs of texts.
    SecondText(Pairs),
    /// Images.
    ImageClass(Images),
}

/// Some examples.
#[derive(Debug, Clone, PartialEq)]
pub enum Examples {
    /// `sequences * context` tokens and their targets.
    Text {
        /// What is read.
        inputs: Vec<u32>,
        /// What is to be said, [`IGNORED`] where nothing is asked.
        targets: Vec<u32>,
        /// `[sequences, context]`.
        shape: [usize; 2],
    },
    /// Pairs.
    Pairs(PairBatch),
    /// Images in patches with their classes.
    Images {
        /// `images * patches * patch width` numbers.
        values: Vec<f32>,
        /// `[images, patches, patch width]`.
        shape: [usize; 3],
        /// The class of each.
        targets: Vec<u32>,
    },
}

impl Dataset {
    /// Reads or makes what the task needs.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn load(task: Task, config: &DataConfig, context: usize, eval_tokens: usize) -> Result<Self, DataError> {
        Ok(match task {
            Task::NextToken => Dataset::NextToken(Corpus::load(config, context, eval_tokens)?),
            Task::HiddenTokens => {
                let mut corpus = Corpus::load(config, context, eval_tokens)?;
                // The entropy of the next token is no bound for one that is seen from both sides, and a loss on some
                // tokens is no length of the text.
                (corpus.summary.floor, corpus.summary.bytes_per_token) = (None, None);
                Dataset::HiddenTokens(corpus)
            }
            Task::SecondText => Dataset::SecondText(Pairs::load(config, context, eval_tokens)?),
            Task::ImageClass => Dataset::ImageClass(Images::load(config)?),
        })
    }

    /// How a task's tokens read, without reading the examples; none where there are no tokens.
    ///
    /// # Errors
    /// If a tokenizer cannot be read.
    pub fn vocabulary_of(task: Task, config: &DataConfig) -> Result<Option<Vocabulary>, DataError> {
        match task {
            Task::ImageClass => Ok(None),
            Task::SecondText => Ok(Some(Pairs::vocabulary_of(config)?)),
            Task::NextToken | Task::HiddenTokens => Ok(Some(Vocabulary::of(config)?)),
        }
    }

    /// What is known of it.
    pub fn summary(&self) -> &CorpusSummary {
        match self {
            Dataset::NextToken(corpus) | Dataset::HiddenTokens(corpus) => &corpus.summary,
            Dataset::SecondText(pairs) => &pairs.summary,
            Dataset::ImageClass(images) => &images.summary,
        }
    }

    /// How many different tokens a model must know, or classes.
    pub fn answers(&self) -> usize {
        match self {
            Dataset::NextToken(corpus) => corpus.vocabulary.size(),
            // One more stands for what is hidden.
            Dataset::HiddenTokens(corpus) => corpus.vocabulary.size() + 1,
            Dataset::SecondText(pairs) => pairs.size(),
            Dataset::ImageClass(images) => images.classes,
        }
    }

    /// How tokens read, where there are tokens.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        match self {
            Dataset::NextToken(corpus) | Dataset::HiddenTokens(corpus) => Some(&corpus.vocabulary),
            Dataset::SecondText(pairs) => Some(&pairs.vocabulary),
            Dataset::ImageClass(_) => None,
        }
    }

    /// The validation examples that are used, in groups of at most `group`: those with about `limit` targets,
    /// spread over all.
    pub fn validation(&self, context: usize, patch: usize, limit: usize, group: usize) -> Vec<Examples> {
        let group = group.max(1);
        match self {
            Dataset::NextToken(corpus) | Dataset::HiddenTokens(corpus) => {
                let windows = validation_windows(&corpus.validation, context, limit.div_ceil(context).max(1));
                let hides = matches!(self, Dataset::HiddenTokens(_));
                let numbered: Vec<_> = windows.into_iter().enumerate().collect();
                numbered
                    .chunks(group)
                    .map(|windows| {
                        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
                        for (number, (input, target)) in windows {
                            if hides {
                                let size = corpus.vocabulary.size() as u32;
                                let (shown, asked) = hide(input, size, size, VALIDATION_MASKS ^ *number as u64);
                                inputs.extend(shown);
                                targets.extend(asked);
                            } else {
                                inputs.extend_from_slice(input);
                                targets.extend_from_slice(target);
                            }
                        }
                        Examples::Text { inputs, targets, shape: [windows.len(), context] }
                    })
                    .collect()
            }
            Dataset::SecondText(pairs) => {
                let used: Vec<_> = validation_used(&pairs.validation, limit).collect();
                used.chunks(group).map(|group| Examples::Pairs(pairs.batch(group.iter().copied()))).collect()
            }
            Dataset::ImageClass(images) => {
                let numbers: Vec<usize> = spread(images.validation.labels.len(), limit).collect();
                numbers.chunks(group).map(|numbers| image_examples(images, true, numbers, patch)).collect()
            }
        }
    }
}

fn image_examples(images: &Images, validation: bool, numbers: &[usize], patch: usize) -> Examples {
    let set = if validation { &images.validation } else { &images.training };
    let values = images.patches(set, numbers, patch);
    let shape = [numbers.len(), (images.side / patch).pow(2), patch * patch];
    Examples::Images { values, shape, targets: numbers.iter().map(|&number| set.labels[number]).collect() }
}

/// The training examples in an order that a seed decides and a [`Cursor`] resumes; an epoch shows each once.
#[derive(Debug, Clone)]
pub enum Feed<'a> {
    /// Windows of text.
    NextToken(Windows<'a>, usize),
    /// Windows of text with hidden tokens, hidden anew in every epoch.
    HiddenTokens {
        /// The text.
        corpus: &'a Corpus,
        /// Tokens of a window.
        context: usize,
        /// Which windows.
        order: Numbers,
        /// Where the masks come from.
        seed: u64,
    },
    /// Pairs.
    SecondText(&'a Pairs, Numbers),
    /// Images, with the side of a patch.
    ImageClass(&'a Images, Numbers, usize),
}

/// Numbers of examples in the order of a seed.
#[derive(Debug, Clone)]
pub struct Numbers(Order);

impl<'a> Feed<'a> {
    /// From `cursor` on.
    ///
    /// # Panics
    /// If there is not one example.
    pub fn new(dataset: &'a Dataset, context: usize, patch: usize, seed: u64, cursor: Cursor) -> Self {
        let numbers = |count: usize| {
            assert!(count > 0, "there is an example");
            Numbers(Order::new(count, seed, cursor))
        };
        match dataset {
            Dataset::NextToken(corpus) => {
                Feed::NextToken(Windows::new(&corpus.training, context, seed, cursor), context)
            }
            Dataset::HiddenTokens(corpus) => {
                let order = numbers(corpus.training.len() / context);
                Feed::HiddenTokens { corpus, context, order, seed }
            }
            Dataset::SecondText(pairs) => Feed::SecondText(pairs, numbers(pairs.training.len())),
            Dataset::ImageClass(images) => Feed::ImageClass(images, numbers(images.training.labels.len()), patch),
        }
    }

    /// The next `count` examples. An epoch's end may fall inside.
    pub fn next_batch(&mut self, count: usize) -> Examples {
        match self {
            Feed::NextToken(windows, context) => {
                let (inputs, targets) = windows.next_batch(count);
                Examples::Text { inputs, targets, shape: [count, *context] }
            }
            Feed::HiddenTokens { corpus, context, order, seed } => {
                let (mut inputs, mut targets) = (Vec::new(), Vec::new());
                let size = corpus.vocabulary.size() as u32;
                for _ in 0..count {
                    let (number, epoch) = order.0.next();
                    let window = &corpus.training[number * *context..][..*context];
                    let own = seed
                        .wrapping_add((number as u64) << 20)
                        .wrapping_add(epoch.wrapping_mul(0x2545_f491_4f6c_dd1d));
                    let (shown, asked) = hide(window, size, size, own);
                    inputs.extend(shown);
                    targets.extend(asked);
                }
                Examples::Text { inputs, targets, shape: [count, *context] }
            }
            Feed::SecondText(pairs, order) => {
                let chosen: Vec<usize> = (0..count).map(|_| order.0.next().0).collect();
                Examples::Pairs(pairs.batch(chosen.iter().map(|&number| &pairs.training[number])))
            }
            Feed::ImageClass(images, order, patch) => {
                let chosen: Vec<usize> = (0..count).map(|_| order.0.next().0).collect();
                image_examples(images, false, &chosen, *patch)
            }
        }
    }

    /// Tokens at the end that fill no window and so are never a target.
    pub fn dropped(&self) -> usize {
        match self {
            Feed::NextToken(windows, _) => windows.dropped(),
            Feed::HiddenTokens { corpus, context, .. } => corpus.training.len() % context,
            Feed::SecondText(..) | Feed::ImageClass(..) => 0,
        }
    }
}
