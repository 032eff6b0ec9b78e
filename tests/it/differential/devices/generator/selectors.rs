//! CEL selectors.

use serde_json::Value;

use super::{Generator, cel};

impl Generator {
    pub(super) fn selector(&mut self) -> Value {
        let expression = match self.dice.below(10) {
            0 => {
                let parts = (self.guarded(), self.guarded());
                format!("{} && {}", parts.0, parts.1)
            }
            1 => {
                let parts = (self.guarded(), self.guarded());
                format!("{} || {}", parts.0, parts.1)
            }
            2 => format!("!({})", self.guarded()),
            3 => self.of_any_driver(),
            _ => self.guarded(),
        };
        cel(&expression)
    }

    /// An expression that needs no attribute.
    fn of_any_driver(&mut self) -> String {
        let driver = self.driver();
        match self.dice.below(8) {
            0 => "device.allowMultipleAllocations".to_owned(),
            1 => "!device.allowMultipleAllocations".to_owned(),
            2 => "\"example.org\" in device.attributes".to_owned(),
            3 => format!("device.driver in [\"{driver}\", \"other.example.com\"]"),
            4 => "device.driver.startsWith(\"gpu.\")".to_owned(),
            5 => "device.driver.matches(\"^[gn]..[.]example\")".to_owned(),
            6 => format!("device.attributes[\"{driver}\"].size() > 1"),
            _ => "true".to_owned(),
        }
    }

    /// An expression about an attribute or a capacity that, except for some, does not fail for a device that has none.
    fn guarded(&mut self) -> String {
        let driver = self.driver();
        let own = format!("device.attributes[\"{driver}\"]");
        let others = "device.attributes[\"example.org\"]";
        let capacity = format!("device.capacity[\"{driver}\"]");
        let text = self.pick(&["a", "b", "c"]);
        let (guard, rest) = match self.dice.below(16) {
            0 => (format!("has({own}.model)"), format!("{own}.model == \"{text}\"")),
            1 => (format!("\"model\" in {own}"), format!("{own}.model in [\"a\", \"{text}\"]")),
            2 => (
                format!("has({own}.index)"),
                format!("{own}.index {} 1", self.pick(&["<", "<=", ">", ">=", "!="])),
            ),
            3 => (format!("has({own}.healthy)"), format!("{own}.healthy")),
            4 => (
                format!("has({own}.version)"),
                format!(
                    "{own}.version.isGreaterThan(semver(\"{}\"))",
                    self.pick(&["1.0.0", "1.2.0", "2.0.0-rc.1"])
                ),
            ),
            5 => (
                format!("has({own}.version)"),
                format!("{own}.version.compareTo(semver(\"{}\")) <= 0", self.pick(&["1.2.0", "2.0.0"])),
            ),
            6 => (
                format!("has({capacity}.memory)"),
                format!(
                    "{capacity}.memory.compareTo(quantity(\"{}\")) >= 0",
                    self.pick(&["8Gi", "9G", "16384Mi"])
                ),
            ),
            7 => (
                "has(device.capacity[\"example.org\"].cores)".to_owned(),
                format!(
                    "device.capacity[\"example.org\"].cores.isLessThan(quantity(\"{}\"))",
                    self.pick(&["5", "4500m"])
                ),
            ),
            8 => (format!("has({others}.numa)"), format!("{others}.numa == {}", self.dice.below(2))),
            9 => (format!("has({others}.link)"), format!("{others}.link.lowerAscii() == \"{text}\"")),
            10 => (format!("has({others}.secure)"), format!("{others}.secure == false")),
            11 => (format!("has({others}.api)"), format!("{others}.api.isLessThan(semver(\"2.0.0\"))")),
            12 | 13 => (
                format!("device.driver == \"{driver}\""),
                format!(
                    "cel.bind(own, {own}, has(own.model) && own.model == \"{text}\" && has(own.index) && own.index < 3)"
                ),
            ),
            _ => (
                format!("device.driver == \"{driver}\""),
                format!("(has({own}.index) ? {own}.index % 2 == 0 : has({others}.numa))"),
            ),
        };
        if self.dice.percent(self.theme.unguarded) {
            // CEL ignores an error if the other side decides alone.
            match self.dice.below(5) {
                0 => format!("({rest} || device.driver == \"{driver}\")"),
                1 => format!("({rest} && device.driver == \"{driver}\")"),
                _ => rest,
            }
        } else if self.dice.percent(40) {
            // True for a device without it.
            format!("(!({guard}) || {rest})")
        } else {
            format!("{guard} && {rest}")
        }
    }
}
