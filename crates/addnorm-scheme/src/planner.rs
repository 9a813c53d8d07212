//! Works one section of a scheme out: constants to numbers, equations to steps, norms to names.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{MEASURED_BRANCHES, MEASURED_EMBEDDING};
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
    /// Where the entries of each history are.
    histories: Vec<Vec<Slot>>,
    entries: Vec<usize>,
    inputs: usize,
    stack: Stack,
    steps: Vec<Step>,
    norm_numbers: BTreeMap<String, NormNumbers>,
    learnables: Vec<LearnedParameter>,
    norm_names: BTreeSet<String>,
    sublayer: Option<Sublayer>,
    /// The sublayer that a slot is the output of.
    source: BTreeMap<Slot, Sublayer>,
}

impl<'a> Planner<'a> {
    /// `entries`: how many each history has on entry.
    pub(crate) fn new(
        scheme: &'a Scheme,
        dimensions: Dimensions,
        place: Place,
        entries: &[usize],
    ) -> Result<Self, String> {
        let (encoder_blocks, decoder_blocks) = match dimensions.stack {
            Stack::Encoder | Stack::Decoder => (dimensions.blocks, dimensions.blocks),
            Stack::PairEncoder { decoder_blocks } => (dimensions.blocks, decoder_blocks),
            Stack::PairDecoder { encoder_blocks } => (encoder_blocks, dimensions.blocks),
        };
        let number = |value: usize| Scalar::Number(value as f64);
        let mut known = BTreeMap::from([
            ("L".to_string(), number(dimensions.blocks)),
            ("N".to_string(), number(encoder_blocks)),
            ("M".to_string(), number(decoder_blocks)),
            ("d".to_string(), number(dimensions.width)),
            ("h".to_string(), number(dimensions.heads)),
            ("sublayers".to_string(), number(dimensions.blocks * dimensions.stack.sublayers().len())),
        ]);
        if let Place::Block(block) = place {
            known.insert("l".to_string(), number(block));
        }
        let mut constants: Vec<(String, Scalar)> = Vec::new();
        // The most particular definition for this stack wins; the order of first mention stays.
        let rank = |constant: &Constant| match constant.only {
            Some(only) if is_for(only, dimensions.stack) => Some(1 + usize::from(only.1)),
            None => Some(0),
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
        let mut inputs = scheme.streams.len();
        let mut histories = Vec::new();
        for &count in entries {
            histories.push((inputs..inputs + count).collect());
            inputs += count;
        }
        Ok(Self {
            scheme,
            place,
            known,
            constants,
            slots: inputs,
            names,
            histories,
            entries: entries.to_vec(),
            inputs,
            stack: dimensions.stack,
            steps: Vec::new(),
            norm_numbers: BTreeMap::new(),
            learnables: Vec::new(),
            norm_names: BTreeSet::new(),
            sublayer: None,
            source: BTreeMap::new(),
        })
    }

    /// The section, and how many entries each history has after it.
    pub(crate) fn embed(mut self) -> Result<(Section, Vec<usize>), String> {
        let scheme = self.scheme;
        for assignment in &scheme.embed {
            self.assignment(assignment)?;
        }
        // A history begins with the first stream as the blocks will find it.
        let first = self.names[&scheme.streams[0]];
        self.histories.iter_mut().filter(|entries| entries.is_empty()).for_each(|entries| entries.push(first));
        self.finish_streams()
    }

    /// The section, and how many entries each history has after it.
    pub(crate) fn block(mut self) -> Result<(Section, Vec<usize>), String> {
        let scheme = self.scheme;
        let mut body = None;
        let ours = |body: &&Body| body.only.is_none_or(|only| is_for(only, self.stack));
        for candidate in scheme.bodies.iter().filter(ours) {
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
                    for (at, &sublayer) in self.stack.sublayers().iter().enumerate() {
                        self.sublayer = Some(sublayer);
                        self.known
                            .insert("sublayer".to_string(), Scalar::Number(self.sublayers_before() + at as f64 + 1.0));
                        for learnable in scheme.learnables.iter().filter(|learnable| learnable.per_sublayer) {
                            let full = Scalar::Name(format!("{}.{}", sublayer.name(), learnable.name));
                            self.known.insert(learnable.name.clone(), full);
                        }
                        for assignment in assignments {
                            self.assignment(assignment)?;
                        }
                    }
                    self.sublayer = None;
                    self.known.remove("sublayer");
                    for learnable in scheme.learnables.iter().filter(|learnable| learnable.per_sublayer) {
                        self.known.remove(&learnable.name);
                    }
                }
            }
        }
        self.right_sublayers()?;
        // A learnable that no chosen path reaches would never get a gradient.
        let reached = reached(&self.steps);
        self.learnables.retain(|learnable| reached.contains(&learnable.name));
        self.finish_streams()
    }

    pub(crate) fn head(mut self) -> Result<Section, String> {
        self.learn()?;
        let output = self.sum(&self.scheme.head)?;
        let reached = reached(&self.steps);
        self.learnables.retain(|learnable| reached.contains(&learnable.name));
        self.finish(vec![output])
    }

    /// Sublayers in the blocks before this one.
    fn sublayers_before(&self) -> f64 {
        let Place::Block(block) = self.place else { return 0.0 };
        ((block - 1) * self.stack.sublayers().len()) as f64
    }

    /// A decoder of a pair attends to its encoder, and nothing else does.
    fn right_sublayers(&self) -> Result<(), String> {
        let crosses = self.steps.iter().any(|step| matches!(step, Step::Apply { sublayer: Sublayer::Cross, .. }));
        let pair = matches!(self.stack, Stack::PairDecoder { .. });
        match (crosses, pair) {
            (false, true) => Err(format!(
                "{} says nothing of cross(...), the attention of a pair's decoder to its encoder; give a body for it \
                 with 'for decoder of pair: block:'",
                self.place.prefix()
            )),
            (true, false) => Err(format!(
                "{} applies cross(...), and there is no encoder to attend to; put 'for decoder of pair:' before its \
                 body",
                self.place.prefix()
            )),
            _ => Ok(()),
        }
    }

    fn learn(&mut self) -> Result<(), String> {
        let scheme = self.scheme;
        for learnable in &scheme.learnables {
            let size = match &learnable.size {
                LearnableSize::Scalar => ParameterSize::Scalar,
                LearnableSize::Width => ParameterSize::Width,
                LearnableSize::Entries(history) => {
                    let at = scheme.histories.iter().position(|name| name == history);
                    ParameterSize::Entries(at.map_or(0, |at| self.histories[at].len()))
                }
            };
            // Outside the blocks there are only weights of histories.
            if !matches!(self.place, Place::Block(_)) && !matches!(size, ParameterSize::Entries(_)) {
                continue;
            }
            if learnable.per_sublayer {
                for (at, sublayer) in self.stack.sublayers().iter().enumerate() {
                    let number = self.sublayers_before() as usize + at + 1;
                    let name = format!("{}.{}", sublayer.name(), learnable.name);
                    self.learnable(name, size, &learnable.initial, number)?;
                }
            } else {
                self.learnable(learnable.name.clone(), size, &learnable.initial, 0)?;
            }
        }
        Ok(())
    }

    /// `sublayer`: its number through the stack, from 1, where it belongs to one.
    fn learnable(
        &mut self,
        name: String,
        size: ParameterSize,
        initial: &Scalar,
        sublayer: usize,
    ) -> Result<(), String> {
        let mut known = self.known.clone();
        known.insert("sublayer".to_string(), Scalar::Number(sublayer as f64));
        if let ParameterSize::Entries(entries) = size {
            known.insert("entries".to_string(), Scalar::Number(entries as f64));
        }
        let expression = initial.fold(&known);
        let mut is_measured = false;
        expression.names(&mut |name| is_measured |= [MEASURED_EMBEDDING, MEASURED_BRANCHES].contains(&name));
        let (initial, measured) = if is_measured {
            (1.0, Some(MeasuredStart { expression, sublayer }))
        } else {
            (self.constant(&expression)?, None)
        };
        self.learnables.push(LearnedParameter { name, size, initial, measured });
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
            let (base, entry) = entry_of(name);
            let is_learned = self.learnables.iter().any(|learnable| {
                let within = |entry| matches!(learnable.size, ParameterSize::Entries(entries) if entry < entries);
                learnable.name == base && entry.is_none_or(within)
            });
            if name != "t" && !is_learned {
                missing = Some(name.to_string());
            }
        });
        if let Some(name) = missing {
            let per_sublayer = self.scheme.learnables.iter().any(|known| known.name == name && known.per_sublayer);
            if entry_of(&name).1.is_some() {
                return Err(format!(
                    "'{}' has a weight for each entry that its history has before {}; use it before adding another",
                    entry_of(&name).0,
                    self.place.prefix()
                ));
            }
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
        match self.scheme.histories.iter().position(|history| *history == assignment.target) {
            Some(history) => self.histories[history].push(output),
            None => {
                self.names.insert(assignment.target.clone(), output);
            }
        }
        Ok(())
    }

    /// Plans a sum and gives the slot of its value.
    fn sum(&mut self, sum: &Sum) -> Result<Slot, String> {
        if let [Term { coefficient, stopped: false, operand }] = sum.terms.as_slice() {
            if coefficient.is_one() && !matches!(operand, Operand::History(_)) {
                return self.operand(operand);
            }
            if let Operand::Norm(inner, settings) = operand {
                let scale = self.coefficient(coefficient)?;
                return self.mix(inner, Some(settings), scale);
            }
        }
        self.mix(sum, None, Coefficient::one())
    }

    fn operand(&mut self, operand: &Operand) -> Result<Slot, String> {
        match operand {
            Operand::Name(name) => self.names.get(name).copied().ok_or_else(|| format!("'{name}' has no value yet")),
            Operand::Norm(inner, settings) => self.mix(inner, Some(settings), Coefficient::one()),
            Operand::Gate { input, bias } => {
                let input = self.sum(input)?;
                self.constant(bias)?;
                let bias = self.coefficient(bias)?;
                let wanted = match self.sublayer {
                    Some(sublayer) => format!("{}.gate", sublayer.name()),
                    None => "gate".to_string(),
                };
                let name = unique(&mut self.norm_names, wanted);
                let output = self.new_slot();
                self.steps.push(Step::Gate { name, input, bias, output });
                Ok(output)
            }
            Operand::Product { gate, value } => {
                let gate = self.operand(gate)?;
                let input = self.sum(value)?;
                let output = self.new_slot();
                if let Some(sublayer) = self.source.get(&input) {
                    self.source.insert(output, *sublayer);
                }
                self.steps.push(Step::Multiply { gate, input, output });
                Ok(output)
            }
            Operand::History(name) => Err(format!("the history '{name}' stands outside a sum")),
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
                let numbers = self.norm_numbers.remove(name);
                *name = unique(&mut self.norm_names, wanted);
                if let Some(numbers) = numbers {
                    self.norm_numbers.insert(name.clone(), numbers);
                }
            }
        }
        Ok(output)
    }

    fn mix(&mut self, sum: &Sum, norm: Option<&NormSettings>, scale: Coefficient) -> Result<Slot, String> {
        let mut terms = Vec::new();
        for term in &sum.terms {
            if let Operand::History(name) = &term.operand {
                self.entries_of(name, term, &mut terms)?;
                continue;
            }
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
        let norm = match norm {
            None => None,
            Some(settings) => {
                let epsilon = settings.epsilon.as_ref().map(|epsilon| self.constant(epsilon)).transpose()?;
                if epsilon.is_some_and(|epsilon| epsilon <= 0.0) {
                    return Err("the epsilon of a norm is a positive number".to_string());
                }
                let gain = settings.gain.as_ref().map_or(Ok(1.0), |gain| self.constant(gain))?;
                let name = self.norm_name(&terms, sole_source);
                if *settings != NormSettings::default() {
                    self.norm_numbers.insert(name.clone(), NormNumbers { symbols: settings.clone(), epsilon, gain });
                }
                Some(name)
            }
        };
        self.steps.push(Step::Mix(Mix { terms, norm, scale, output }));
        Ok(output)
    }

    /// A term for every entry of a history.
    fn entries_of(&mut self, history: &str, term: &Term, terms: &mut Vec<MixTerm>) -> Result<(), String> {
        let scheme = self.scheme;
        let at = scheme.histories.iter().position(|name| name == history).unwrap_or_default();
        let weights: Vec<&str> = scheme
            .learnables
            .iter()
            .filter(|learnable| matches!(learnable.size, LearnableSize::Entries(_)))
            .map(|learnable| learnable.name.as_str())
            .collect();
        let outside = self.known.clone();
        for (entry, input) in self.histories[at].clone().into_iter().enumerate() {
            self.known.insert("entry".to_string(), Scalar::Number(entry as f64));
            for weight in &weights {
                self.known.insert(weight.to_string(), Scalar::Name(format!("{weight}[{entry}]")));
            }
            let coefficient = self.coefficient(&term.coefficient)?;
            terms.push(MixTerm { coefficient, input, stopped: term.stopped, contribution_of: None });
        }
        self.known = outside;
        Ok(())
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

    fn finish_streams(self) -> Result<(Section, Vec<usize>), String> {
        let mut outputs: Vec<Slot> = self.scheme.streams.iter().map(|stream| self.names[stream]).collect();
        outputs.extend(self.histories.iter().flatten());
        let entries = self.histories.iter().map(Vec::len).collect();
        Ok((self.finish(outputs)?, entries))
    }

    fn finish(self, outputs: Vec<Slot>) -> Result<Section, String> {
        let init = self.init_table()?;
        let dead_after = dead_after(&self.steps, &outputs);
        Ok(Section {
            place: self.place,
            steps: self.steps,
            slots: self.slots,
            inputs: self.inputs,
            entries: self.entries,
            outputs,
            norm_numbers: self.norm_numbers,
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
        step.reads(&mut |slot| {
            last_use.insert(slot, at);
        });
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
        if !needed[step.output()] {
            continue;
        }
        step.reads(&mut |slot| needed[slot] = true);
        kept.push(step);
    }
    kept.reverse();
    section.steps = kept;
    for (at, (output, live)) in section.outputs.iter_mut().zip(live).enumerate() {
        // What is computed anyway stays what it is, for whoever looks. An entry of a history that nothing reads is
        // handed on as any value at all.
        if !live && *output >= section.inputs && !needed[*output] {
            *output = if at < streams { at } else { 0 };
        }
    }
    let reached = reached(&section.steps);
    section.learnables.retain(|learnable| reached.contains(&learnable.name));
    section.dead_after = dead_after(&section.steps, &section.outputs);
    needed.truncate(section.inputs);
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
                    reached.insert(entry_of(name).0.to_string());
                })
            });
        }
    }
    reached
}

/// Whether a rule for one side, or one side of a pair, is for this stack.
fn is_for((side, only_pair): (StackSide, bool), stack: Stack) -> bool {
    let (own, pair) = stack.side();
    own == side && (pair || !only_pair)
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
