//! Works one section of a scheme out: constants to numbers, equations to steps, norms to names.

use std::collections::{BTreeMap, BTreeSet};

use crate::init::{DistributionKind, InitRow, InitTable, MatrixKind};
use crate::plan::*;
use crate::scalar::Scalar;
use crate::scheme::*;

/// Largest size of a constant that stays symbolic because it depends on the training step.
const MAX_SYMBOLIC_SIZE: usize = 64;

/// Largest size of a factor in an equation once its constants are filled in.
const MAX_FACTOR_SIZE: usize = 1024;

pub(crate) struct Planner<'a> {
    scheme: &'a Scheme,
    place: Place,
    known: BTreeMap<String, Scalar>,
    constants: Vec<(String, Scalar)>,
    slots: usize,
    names: BTreeMap<String, Slot>,
    steps: Vec<Step>,
    learnables: Vec<LearnedParameter>,
    norm_names: BTreeSet<String>,
    sublayer: Option<Sublayer>,
    /// The sublayer that a slot is the output of.
    source: BTreeMap<Slot, Sublayer>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(scheme: &'a Scheme, dimensions: Dimensions, place: Place) -> Result<Self, String> {
        let (encoder_blocks, decoder_blocks, side, pair) = match dimensions.stack {
            Stack::Encoder => (dimensions.blocks, dimensions.blocks, StackSide::Encoder, false),
            Stack::Decoder => (dimensions.blocks, dimensions.blocks, StackSide::Decoder, false),
            Stack::PairEncoder { decoder_blocks } => (dimensions.blocks, decoder_blocks, StackSide::Encoder, true),
            Stack::PairDecoder { encoder_blocks } => (encoder_blocks, dimensions.blocks, StackSide::Decoder, true),
        };
        let number = |value: usize| Scalar::Number(value as f64);
        let mut known = BTreeMap::from([
            ("L".to_string(), number(dimensions.blocks)),
            ("N".to_string(), number(encoder_blocks)),
            ("M".to_string(), number(decoder_blocks)),
            ("d".to_string(), number(dimensions.width)),
            ("h".to_string(), number(dimensions.heads)),
        ]);
        if let Place::Block(block) = place {
            known.insert("l".to_string(), number(block));
        }
        let mut constants: Vec<(String, Scalar)> = Vec::new();
        // The most particular definition for this stack wins; the order of first mention stays.
        let rank = |constant: &Constant| match constant.only {
            None => Some(0),
            Some((for_side, only_pair)) if for_side == side && (pair || !only_pair) => Some(1 + usize::from(only_pair)),
            Some(_) => None,
        };
        let mut names: Vec<&str> = Vec::new();
        for constant in &scheme.constants {
            if !names.contains(&constant.name.as_str()) {
                names.push(&constant.name);
            }
        }
        // A definition may use one that stands further down, where a stack has another than the rest: go round
        // until nothing new is known.
        let mut pending: Vec<(&str, &Scalar)> = names
            .into_iter()
            .filter_map(|name| {
                let definitions = scheme.constants.iter().filter(|constant| constant.name == name);
                let ranked = definitions.filter_map(|constant| rank(constant).map(|rank| (rank, constant)));
                ranked.max_by_key(|(rank, _)| *rank).map(|(_, constant)| (name, &constant.definition))
            })
            .collect();
        loop {
            let before = pending.len();
            let mut waiting = Vec::new();
            for (name, definition) in pending {
                let folded = definition.fold(&known);
                let mut open = false;
                folded.names(&mut |name| open |= name != "t");
                if open {
                    waiting.push((name, definition));
                    continue;
                }
                if folded.size() > MAX_SYMBOLIC_SIZE {
                    return Err(format!("the constant '{name}' is too large an expression of the training step"));
                }
                finite_from_the_start(&folded)
                    .map_err(|when| format!("the constant '{name}' is not finite at {}{when}", place.prefix()))?;
                known.insert(name.to_string(), folded.clone());
                constants.push((name.to_string(), folded));
            }
            pending = waiting;
            // Outside the blocks, what needs the block's number stays open.
            if pending.is_empty() || pending.len() == before {
                break;
            }
        }
        let names = scheme.streams.iter().enumerate().map(|(slot, name)| (name.clone(), slot)).collect();
        Ok(Self {
            scheme,
            place,
            known,
            constants,
            slots: scheme.streams.len(),
            names,
            steps: Vec::new(),
            learnables: Vec::new(),
            norm_names: BTreeSet::new(),
            sublayer: None,
            source: BTreeMap::new(),
        })
    }

    pub(crate) fn embed(mut self) -> Result<Section, String> {
        let scheme = self.scheme;
        for assignment in &scheme.embed {
            self.assignment(assignment)?;
        }
        self.finish_streams()
    }

    pub(crate) fn block(mut self) -> Result<Section, String> {
        let scheme = self.scheme;
        let mut body = None;
        for candidate in &scheme.bodies {
            let holds = match &candidate.condition {
                None => true,
                Some(condition) => match condition.fold(&self.known).number() {
                    Some(truth) => truth != 0.0,
                    None => return Err(self.unknown(condition)),
                },
            };
            if holds {
                body = Some(candidate);
                break;
            }
        }
        let Some(body) = body else {
            return Err(format!("no body is for {}; end with a 'block:' without a condition", self.place.prefix()));
        };
        self.learn()?;
        for part in &body.parts {
            match part {
                BodyPart::Assignment(assignment) => self.assignment(assignment)?,
                BodyPart::Each(assignments) => {
                    for sublayer in Sublayer::ORDER {
                        self.sublayer = Some(sublayer);
                        for learnable in scheme.learnables.iter().filter(|learnable| learnable.per_sublayer) {
                            let full = Scalar::Name(format!("{}.{}", sublayer.name(), learnable.name));
                            self.known.insert(learnable.name.clone(), full);
                        }
                        for assignment in assignments {
                            self.assignment(assignment)?;
                        }
                    }
                    self.sublayer = None;
                    for learnable in scheme.learnables.iter().filter(|learnable| learnable.per_sublayer) {
                        self.known.remove(&learnable.name);
                    }
                }
            }
        }
        // A learnable that no chosen path reaches would never get a gradient.
        let reached = reached(&self.steps);
        self.learnables.retain(|learnable| reached.contains(&learnable.name));
        self.finish_streams()
    }

    pub(crate) fn head(mut self) -> Result<Section, String> {
        let output = self.sum(&self.scheme.head)?;
        self.finish(vec![output])
    }

    fn learn(&mut self) -> Result<(), String> {
        for learnable in &self.scheme.learnables {
            let initial = self.constant(&learnable.initial)?;
            let names = if learnable.per_sublayer {
                Sublayer::ORDER.iter().map(|sublayer| format!("{}.{}", sublayer.name(), learnable.name)).collect()
            } else {
                vec![learnable.name.clone()]
            };
            for name in names {
                self.learnables.push(LearnedParameter { name, vector: learnable.vector, initial });
            }
        }
        Ok(())
    }

    fn unknown(&self, scalar: &Scalar) -> String {
        let mut missing = Vec::new();
        scalar.fold(&self.known).names(&mut |name| missing.push(name.to_string()));
        format!("'{}' has no value at {}", missing.join("', '"), self.place.prefix())
    }

    fn constant(&self, scalar: &Scalar) -> Result<f64, String> {
        match scalar.fold(&self.known).number() {
            Some(number) if number.is_finite() => Ok(number),
            Some(number) => Err(format!("a constant is {number} at {}", self.place.prefix())),
            None => Err(self.unknown(scalar)),
        }
    }

    fn coefficient(&self, symbol: &Scalar) -> Result<Coefficient, String> {
        let folded = symbol.fold(&self.known);
        if folded.size() > MAX_FACTOR_SIZE {
            return Err("a factor is too large an expression".to_string());
        }
        finite_from_the_start(&folded)
            .map_err(|when| format!("a factor is not finite at {}{when}", self.place.prefix()))?;
        let mut missing = None;
        folded.names(&mut |name| {
            let is_learned = self.learnables.iter().any(|learnable| learnable.name == name);
            if name != "t" && !is_learned {
                missing = Some(name.to_string());
            }
        });
        if let Some(name) = missing {
            let per_sublayer = self.scheme.learnables.iter().any(|known| known.name == name && known.per_sublayer);
            return Err(if per_sublayer {
                format!("'{name}' is learned per sublayer and can only stand under 'each'")
            } else {
                format!("'{name}' has no value at {}", self.place.prefix())
            });
        }
        Ok(Coefficient { symbol: symbol.clone(), folded })
    }

    fn new_slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    fn assignment(&mut self, assignment: &Assignment) -> Result<(), String> {
        let input = self.sum(&assignment.value)?;
        let output = self.new_slot();
        if let Some(sublayer) = self.source.get(&input) {
            self.source.insert(output, *sublayer);
        }
        self.steps.push(Step::Assign {
            name: assignment.target.clone(),
            is_stream: self.scheme.streams.contains(&assignment.target),
            input,
            output,
            line: assignment.line,
        });
        self.names.insert(assignment.target.clone(), output);
        Ok(())
    }

    /// Plans a sum and gives the slot of its value.
    fn sum(&mut self, sum: &Sum) -> Result<Slot, String> {
        if let [Term { coefficient, stopped: false, operand }] = sum.terms.as_slice() {
            if coefficient.is_one() {
                return self.operand(operand);
            }
            if let Operand::Norm(inner) = operand {
                let scale = self.coefficient(coefficient)?;
                return self.mix(inner, true, scale);
            }
        }
        self.mix(sum, false, Coefficient::one())
    }

    fn operand(&mut self, operand: &Operand) -> Result<Slot, String> {
        match operand {
            Operand::Name(name) => self.names.get(name).copied().ok_or_else(|| format!("'{name}' has no value yet")),
            Operand::Norm(inner) => self.mix(inner, true, Coefficient::one()),
            Operand::Sublayer(sublayer, inner) => self.apply(*sublayer, inner),
            Operand::EachSublayer(inner) => {
                let sublayer = self.sublayer.ok_or("a sublayer stands outside 'each'")?;
                self.apply(sublayer, inner)
            }
        }
    }

    fn apply(&mut self, sublayer: Sublayer, inner: &Sum) -> Result<Slot, String> {
        let before = self.sublayer.replace(sublayer);
        let input = self.sum(inner)?;
        // Outside an 'each', what follows an application belongs to it by name.
        self.sublayer = before.or(Some(sublayer));
        let output = self.new_slot();
        self.source.insert(output, sublayer);
        self.steps.push(Step::Apply { sublayer, input, output });
        if let Some(Step::Mix(mix)) =
            self.steps.iter_mut().rev().skip(1).find(|step| matches!(step, Step::Mix(mix) if mix.output == input))
        {
            // A norm whose result a sublayer reads and nothing else names is that sublayer's input norm.
            if let Some(name) = mix.norm.as_mut().filter(|name| name.ends_with(".norm")) {
                self.norm_names.remove(name);
                let wanted = format!("{}.input_norm", sublayer.name());
                *name = unique(&mut self.norm_names, wanted);
            }
        }
        Ok(output)
    }

    fn mix(&mut self, sum: &Sum, normed: bool, scale: Coefficient) -> Result<Slot, String> {
        let mut terms = Vec::new();
        for term in &sum.terms {
            let coefficient = self.coefficient(&term.coefficient)?;
            let input = self.operand(&term.operand)?;
            let contribution_of = self.source.get(&input).copied();
            terms.push(MixTerm { coefficient, input, stopped: term.stopped, contribution_of });
        }
        let output = self.new_slot();
        let sole_source = if let [only] = terms.as_slice() { only.contribution_of } else { None };
        if let Some(sublayer) = sole_source {
            self.source.insert(output, sublayer);
        }
        let norm = normed.then(|| self.norm_name(&terms, sole_source));
        self.steps.push(Step::Mix(Mix { terms, norm, scale, output }));
        Ok(output)
    }

    /// A norm is named for its role: after a sublayer alone, after an addition, or else plain `norm`,
    /// which becomes `input_norm` when a sublayer turns out to read it.
    fn norm_name(&mut self, terms: &[MixTerm], sole_source: Option<Sublayer>) -> String {
        let role = match (sole_source, terms) {
            (Some(sublayer), _) => return unique(&mut self.norm_names, format!("{}.output_norm", sublayer.name())),
            (None, [only]) => match self.stream_of(only.input) {
                Some(stream) if self.scheme.streams.len() > 1 => format!("{stream}_norm"),
                _ => "norm".to_string(),
            },
            _ => "residual_norm".to_string(),
        };
        let contributor = terms.iter().find_map(|term| term.contribution_of).or(self.sublayer);
        let name = match contributor {
            Some(sublayer) => format!("{}.{role}", sublayer.name()),
            None => role,
        };
        unique(&mut self.norm_names, name)
    }

    fn stream_of(&self, slot: Slot) -> Option<&str> {
        self.scheme.streams.iter().find(|stream| self.names.get(*stream) == Some(&slot)).map(String::as_str)
    }

    fn finish_streams(self) -> Result<Section, String> {
        let outputs = self.scheme.streams.iter().map(|stream| self.names[stream]).collect();
        self.finish(outputs)
    }

    fn finish(self, outputs: Vec<Slot>) -> Result<Section, String> {
        let init = self.init_table()?;
        let dead_after = dead_after(&self.steps, &outputs);
        Ok(Section {
            place: self.place,
            steps: self.steps,
            slots: self.slots,
            outputs,
            learnables: self.learnables,
            constants: self.constants,
            init,
            dead_after,
        })
    }

    fn init_table(&self) -> Result<InitTable, String> {
        let mut table = InitTable { rows: BTreeMap::new() };
        for rule in &self.scheme.init {
            for &kind in &rule.kinds {
                let in_blocks = !matches!(kind, MatrixKind::Embedding | MatrixKind::Positions | MatrixKind::Head);
                if in_blocks != matches!(self.place, Place::Block(_)) {
                    continue;
                }
                let row = table.rows.entry(kind).or_insert(InitRow { distribution: None, factor: 1.0 });
                if let Some((distribution, arguments)) = &rule.distribution {
                    let numbers = arguments.iter().map(|argument| self.constant(argument));
                    let numbers: Vec<f64> = numbers.collect::<Result<_, _>>()?;
                    if numbers.iter().any(|&number| number < 0.0) {
                        return Err(format!("{} takes no negative number", distribution.name()));
                    }
                    if *distribution == DistributionKind::TruncatedNormal
                        && numbers.get(1).is_some_and(|&cut| cut < 0.1)
                    {
                        return Err("a cut below 0.1 standard deviations leaves next to nothing of a normal".into());
                    }
                    *row = InitRow { distribution: Some((*distribution, numbers)), factor: 1.0 };
                }
                if let Some(times) = &rule.times {
                    row.factor *= self.constant(times)?;
                }
            }
        }
        Ok(table)
    }
}

/// For each step, the slots that nothing reads after it.
fn dead_after(steps: &[Step], outputs: &[Slot]) -> Vec<Vec<Slot>> {
    let mut last_use: BTreeMap<Slot, usize> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Mix(mix) => mix.terms.iter().for_each(|term| {
                last_use.insert(term.input, at);
            }),
            Step::Apply { input, .. } | Step::Assign { input, .. } => {
                last_use.insert(*input, at);
            }
        }
    }
    let mut dead_after = vec![Vec::new(); steps.len()];
    for (slot, at) in last_use {
        if !outputs.contains(&slot) {
            dead_after[at].push(slot);
        }
    }
    dead_after
}

/// Takes out what reaches no result: `live` says which of the section's outputs anything reads. A stream that
/// nothing reads is handed on as it came. What comes back is which streams this section reads.
pub(crate) fn prune(section: &mut Section, live: &[bool], streams: usize) -> Vec<bool> {
    let mut needed = vec![false; section.slots];
    for (output, live) in section.outputs.iter().zip(live) {
        needed[*output] |= live;
    }
    let mut kept = Vec::new();
    for step in section.steps.drain(..).rev() {
        let output = match &step {
            Step::Mix(mix) => mix.output,
            Step::Apply { output, .. } | Step::Assign { output, .. } => *output,
        };
        if !needed[output] {
            continue;
        }
        match &step {
            Step::Mix(mix) => mix.terms.iter().for_each(|term| needed[term.input] = true),
            Step::Apply { input, .. } | Step::Assign { input, .. } => needed[*input] = true,
        }
        kept.push(step);
    }
    kept.reverse();
    section.steps = kept;
    for (stream, (output, live)) in section.outputs.iter_mut().zip(live).enumerate() {
        if !live {
            *output = stream;
        }
    }
    let reached = reached(&section.steps);
    section.learnables.retain(|learnable| reached.contains(&learnable.name));
    section.dead_after = dead_after(&section.steps, &section.outputs);
    needed.truncate(streams);
    needed
}

/// The names in the factors of some steps.
fn reached(steps: &[Step]) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    for step in steps {
        if let Step::Mix(mix) = step {
            let coefficients = mix.terms.iter().map(|term| &term.coefficient).chain([&mix.scale]);
            coefficients.for_each(|coefficient| {
                coefficient.folded.names(&mut |name| {
                    reached.insert(name.to_string());
                })
            });
        }
    }
    reached
}

/// A number must be finite; an expression of the training step alone, at the first step.
fn finite_from_the_start(folded: &Scalar) -> Result<(), &'static str> {
    let start = folded.fold(&BTreeMap::from([("t".to_string(), Scalar::Number(0.0))]));
    match (folded.number(), start.number()) {
        (Some(number), _) if !number.is_finite() => Err(""),
        (None, Some(number)) if !number.is_finite() => Err(" when training begins (t = 0)"),
        _ => Ok(()),
    }
}

fn unique(taken: &mut BTreeSet<String>, wanted: String) -> String {
    let mut name = wanted.clone();
    let mut count = 1;
    while !taken.insert(name.clone()) {
        count += 1;
        name = format!("{wanted}{count}");
    }
    name
}
