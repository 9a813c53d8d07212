//! What can be said on the command line.

use std::path::PathBuf;

use addnorm_data::{InvalidUtf8, Newlines};
use addnorm_nn::{ActivationKind, Positions, QkNorm, StackKind};
use addnorm_scheme::NormKind;
use addnorm_train::{Decay, Recompute, RunConfig};
use clap::{Args, Parser, Subcommand};
use serde::de::DeserializeOwned;

/// A workbench for the "Add & Norm" of Transformers: write a scheme, train it, compare it.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the schemes that come with addnorm
    Schemes(SchemesArguments),
    /// List the published models whose configurations come with addnorm
    Models(ModelsArguments),
    /// Show a scheme (equations, constants at a depth, initialisers, cost) or a published model
    Show(ShowArguments),
    /// Check a scheme's text without running it
    Check(CheckArguments),
    /// Train several schemes side by side on equal terms
    Compare(CompareArguments),
    /// Train one scheme
    Train(TrainArguments),
    /// Continue a prompt with a trained model
    Generate(GenerateArguments),
    /// Measure sparse softmax and sparse norms on a trained model: work saved against output error
    Sparse(SparseArguments),
    /// Write a run's model as the same function in another form
    Convert(ConvertArguments),
    /// Write translations with a trained pair, and score them
    Translate(TranslateArguments),
    /// Time training steps, evaluations and norms, beside the same in another framework
    Bench(BenchArguments),
}

#[derive(Debug, Args)]
pub struct SchemesArguments {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Write them all as a document with diagrams into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "json")]
    pub markdown: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ModelsArguments {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/show.txt"))]
pub struct ShowArguments {
    /// A scheme's name (with constants set, as in 'mix-ln(ratio=1/2)'), a path to a file, the text itself, or a
    /// model's name
    pub scheme: String,
    /// decoder, encoder, pair, vision
    #[arg(long, value_parser = word::<StackKind>, value_name = "KIND")]
    pub stack: Option<StackKind>,
    /// Blocks [default: 24, or the model's]
    #[arg(long)]
    pub depth: Option<usize>,
    /// Width of the residual stream [default: 64, or the model's]
    #[arg(long)]
    pub width: Option<usize>,
    /// Attention heads [default: 4, or the model's]
    #[arg(long)]
    pub heads: Option<usize>,
    /// Write JSON, with LaTeX and the block's diagram as SVG
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// A path to a scheme's file, a name, or the text itself
    pub scheme: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/compare.txt"))]
pub struct CompareArguments {
    /// Schemes: names, paths to files, or texts. Without any, eight telling ones
    pub schemes: Vec<String>,
    #[command(flatten)]
    pub run: RunFlags,
    /// Runs of each scheme, with seeds counting up from '--seed'
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Runs at one time; they share the threads. Without it, one a core
    #[arg(long)]
    pub jobs: Option<usize>,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/train.txt"))]
pub struct TrainArguments {
    /// A configuration file
    pub config: Option<PathBuf>,
    /// The scheme: a name, a path to a file, or the text
    #[arg(long)]
    pub scheme: Option<String>,
    #[command(flatten)]
    pub run: RunFlags,
}

#[derive(Debug, Args)]
pub struct GenerateArguments {
    /// The folder of a finished run
    pub run: PathBuf,
    /// What to go on from
    #[arg(long)]
    pub prompt: String,
    /// Tokens to write
    #[arg(long, default_value_t = 100)]
    pub tokens: usize,
    /// 0 always takes the likeliest token; 1 draws as the model says
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// flex, cuda:N or wgpu
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SparseArguments {
    /// The folder of a finished run
    pub run: PathBuf,
    /// Errors of the softmax to try: this share of a query's weight is left out at most
    #[arg(long, value_delimiter = ',', default_value = "0,1e-3,1e-2,3e-2,0.1", value_name = "X,...")]
    pub softmax: Vec<f64>,
    /// Errors of the norms to try: how far their results may be off, RMS over RMS
    #[arg(long, value_delimiter = ',', default_value = "1e-2,3e-2,0.1,0.2", value_name = "X,...")]
    pub norm: Vec<f64>,
    /// Also run one sequence of so many tokens
    #[arg(long, value_name = "N")]
    pub long: Option<usize>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/convert.txt"))]
pub struct ConvertArguments {
    /// The folder of a finished run
    pub run: PathBuf,
    /// The scheme whose form it is to have: pre-rmsnorm, pre-crmsnorm, or a file or text of your own
    #[arg(long, value_name = "SCHEME")]
    pub to: String,
    /// Folder to write to [default: a new one under runs/]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// flex, cuda:N or wgpu
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TranslateArguments {
    /// The folder of a finished run of a pair
    pub run: PathBuf,
    /// Texts to translate. Without any, a sample of the run's validation pairs is translated and scored
    pub texts: Vec<String>,
    /// Outputs kept at every step of the search; 1 always takes the likeliest token
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub beam: usize,
    /// Exponent of the length that scores are divided by
    #[arg(long, default_value_t = 0.6, value_name = "X")]
    pub length_penalty: f64,
    /// Validation pairs to score
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub pairs: usize,
    /// flex, cuda:N or wgpu
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// Settings of a run. Each overrides the configuration file.
#[derive(Debug, Args)]
pub struct RunFlags {
    /// A configuration file (TOML) to start from
    #[arg(long = "config", value_name = "FILE", id = "config_file")]
    pub config: Option<PathBuf>,
    /// A published model to start from, with its scheme where none is given; 'addnorm models' lists them
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// decoder (next token), encoder (hidden tokens), pair (translation), vision (images)
    #[arg(long, value_parser = word::<StackKind>, value_name = "KIND")]
    pub stack: Option<StackKind>,
    /// Blocks; of a pair those of its encoder
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Blocks of a pair's decoder [default: as many as the encoder's]
    #[arg(long, value_name = "N")]
    pub decoder_depth: Option<usize>,
    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// Attention heads
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Key/value heads, where fewer than heads
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<usize>,
    /// Hidden width of the feed-forward network [default: 4 times the width]
    #[arg(long, value_name = "N")]
    pub ffn_width: Option<usize>,
    /// Tokens of one sequence
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Height and width of an image's patches, in pixels
    #[arg(long, value_name = "N")]
    pub patch: Option<usize>,
    /// Norm kind where the scheme leaves it open: layernorm, layernorm_no_bias, rmsnorm, rmsnorm_one_plus,
    /// crmsnorm, dyt, none
    #[arg(long, value_parser = word::<NormKind>, value_name = "KIND")]
    pub norm: Option<NormKind>,
    /// Norms on queries and keys where the scheme says nothing of them: none, per_head, full_width
    #[arg(long, value_parser = word::<QkNorm>, value_name = "KIND")]
    pub qk_norm: Option<QkNorm>,
    /// none, learned, sinusoidal, rope
    #[arg(long, value_parser = word::<Positions>, value_name = "KIND")]
    pub positions: Option<Positions>,
    /// gelu, gelu_tanh, relu, swiglu, geglu
    #[arg(long, value_parser = word::<ActivationKind>, value_name = "KIND")]
    pub activation: Option<ActivationKind>,
    /// Dropout on the embedding and on every branch
    #[arg(long, value_name = "P")]
    pub dropout: Option<f64>,
    /// Use the embedding as the head
    #[arg(long)]
    pub tied: bool,
    /// Linear maps without biases
    #[arg(long)]
    pub no_bias: bool,
    /// Training steps
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Sequences of one step
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Compute a step's sequences in so many parts
    #[arg(long, value_name = "N")]
    pub accumulate: Option<usize>,
    /// Compute again in the backward pass instead of keeping: none, blocks, or N blocks at a time
    #[arg(long, value_name = "WHAT")]
    pub recompute: Option<Recompute>,
    /// Peak learning rate
    #[arg(long, value_name = "RATE")]
    pub lr: Option<f64>,
    /// Steps of linear warm-up
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// After the warm-up: constant, linear, cosine
    #[arg(long, value_parser = word::<Decay>, value_name = "KIND")]
    pub decay: Option<Decay>,
    /// AdamW's decoupled weight decay, on matrices only
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f64>,
    /// Largest global gradient norm; 0 for no clipping
    #[arg(long, value_name = "X")]
    pub clip: Option<f64>,
    /// Seed that every random stream derives from
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Threads in all [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// flex, cuda:N or wgpu
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// The folder of a run whose weights to start from
    #[arg(long, value_name = "FOLDER")]
    pub from: Option<PathBuf>,
    /// What to train on: text files and folders; for a pair .tsv files, or two files line by line; for images a
    /// folder of IDX files or a CSV. Without it, what is built in
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// In folders, only files that end so, for example 'py'
    #[arg(long = "ext", value_name = "EXT", value_delimiter = ',')]
    pub extensions: Vec<String>,
    /// A tokenizer.json; without it, bytes are tokens
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Bytes that are not UTF-8: error, replace, or skip the file
    #[arg(long, value_parser = word::<InvalidUtf8>, value_name = "RULE")]
    pub invalid: Option<InvalidUtf8>,
    /// Line ends: keep, or lf
    #[arg(long, value_parser = word::<Newlines>, value_name = "RULE")]
    pub newlines: Option<Newlines>,
    /// Folder to write to [default: a new one under runs/]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/bench.txt"))]
pub struct BenchArguments {
    /// What to measure: a TOML file of items. Without it, the suite that comes with addnorm
    #[arg(long, value_name = "FILE")]
    pub suite: Option<PathBuf>,
    /// Only items with this in their name; several must all be in it
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// A program that runs the same models: its words parted by spaces. Ours and theirs are run in turn
    #[arg(long = "peer", value_name = "COMMAND")]
    pub peers: Vec<String>,
    /// Repeats of each, in turn; the median counts
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub repeats: usize,
    /// About how long one repeat takes
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Threads of each [default: all cores]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    pub threads: usize,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Do the work that is asked for on stdin
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// One of the words that a setting knows, spelled as in configuration files.
fn word<T: DeserializeOwned + Clone + Send + Sync + 'static>(said: &str) -> Result<T, String> {
    T::deserialize(toml::Value::String(said.to_string())).map_err(|error| error.message().to_string())
}

impl RunFlags {
    /// Puts what was said over `config`.
    pub fn apply(&self, config: &mut RunConfig) {
        fn set<T: Clone>(value: &Option<T>, into: &mut T) {
            if let Some(value) = value {
                *into = value.clone();
            }
        }
        let RunConfig { model, train, data, .. } = config;
        set(&self.stack, &mut model.stack);
        set(&self.depth, &mut model.blocks);
        set(&self.decoder_depth, &mut model.decoder_blocks);
        set(&self.patch, &mut model.patch);
        set(&self.qk_norm, &mut model.qk_norm);
        set(&self.width, &mut model.width);
        set(&self.heads, &mut model.heads);
        set(&self.kv_heads, &mut model.kv_heads);
        set(&self.ffn_width, &mut model.ffn_width);
        set(&self.context, &mut model.context);
        set(&self.norm, &mut model.norm);
        set(&self.positions, &mut model.positions);
        set(&self.activation, &mut model.activation);
        set(&self.dropout, &mut model.dropout);
        model.tied |= self.tied;
        model.bias &= !self.no_bias;
        set(&self.steps, &mut train.steps);
        set(&self.batch, &mut train.batch);
        set(&self.accumulate, &mut train.accumulate);
        set(&self.recompute, &mut train.recompute);
        set(&self.lr, &mut train.learning_rate);
        set(&self.warmup, &mut train.warmup);
        set(&self.decay, &mut train.decay);
        set(&self.weight_decay, &mut train.weight_decay);
        set(&self.clip, &mut train.clip);
        set(&self.seed, &mut train.seed);
        set(&self.threads, &mut train.threads);
        set(&self.device, &mut train.device);
        if self.from.is_some() {
            train.from = self.from.clone();
        }
        if !self.data.is_empty() {
            data.paths = self.data.clone();
        }
        if !self.extensions.is_empty() {
            data.extensions =
                self.extensions.iter().map(|extension| extension.trim_start_matches('.').into()).collect();
        }
        if self.tokenizer.is_some() {
            data.tokenizer = self.tokenizer.clone();
        }
        set(&self.invalid, &mut data.invalid);
        set(&self.newlines, &mut data.newlines);
    }
}
