// Command quantity-vectors prints the results of upstream's resource.ParseQuantity for many strings, to compare berth's own parser
// with. Regenerate the committed file, from this folder, with
//
//	go run . > ../../tests/data/quantities.txt
//
// Columns, separated by tabs: input, ok or err, Value(), MilliValue(), exact amount in billionths.
// The strings are a fixed list of corner cases, then random ones from a fixed seed.
package main

import (
	"bufio"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"strings"

	inf "gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"
)

const randomCount = 2500

var suffixes = strings.Split(" n u m k M G T P E Ki Mi Gi Ti Pi Ei", " ")

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# Made by tools/quantity-vectors from k8s.io/apimachinery v0.36.3: input, verdict, value, milli, nano")
	seen := map[string]bool{}
	emit := func(input string) {
		// The loader skips lines that start with a hash.
		if seen[input] || strings.ContainsAny(input, "\t\r\n") || strings.HasPrefix(input, "#") {
			return
		}
		seen[input] = true
		fmt.Fprintln(out, vector(input))
	}
	for _, input := range corners() {
		emit(input)
	}
	random := rand.New(rand.NewPCG(3, 36))
	for range randomCount {
		emit(randomQuantity(random))
	}
}

func vector(input string) string {
	quantity, err := resource.ParseQuantity(input)
	if err != nil {
		return input + "\terr\t\t\t"
	}
	value, milli := quantity.Value(), quantity.MilliValue()
	return fmt.Sprintf("%s\tok\t%d\t%d\t%s", input, value, milli, nano(quantity))
}

// nano is exact: parsing leaves nothing finer than a billionth.
func nano(quantity resource.Quantity) string {
	const scale = inf.Scale(9)
	exact := new(inf.Dec).Round(quantity.AsDec(), scale, inf.RoundExact)
	if exact == nil {
		panic("finer than a billionth: " + quantity.String())
	}
	return new(big.Int).Set(exact.UnscaledBig()).String()
}

func corners() []string {
	numbers := []string{
		"", "0", "00", "1", "-1", "+1", "-0", "+", "-", ".", "+.", "-.", "1.", ".1", "-.5", "+.5", "0.", "00.", "001.10",
		"0.000000001", "0.0000000001", "-0.0000000001", "0.1234567891", "1.5", "-1.5", "999", "1000", "1023", "1024",
		"999999999999999999", "1000000000000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"9223372036854775.807", "9223372036854775.808", "0.999999999999999999999999999999", "8", "7.999999999999", "16",
		"18446744073709551616", "123456789012345678901234567890", "0.000000000000000000000000000001",
	}
	inputs := []string{
		"1e", "1E", "1e+", "1e-", "1e++1", "1e1e1", "1ee1", "1Ee1", "1e1.5", "1e1 ", " 1", "1 ", "1 Ki", "1ki", "1KI",
		"1K", "1mi", "1ni", "1i", "1B", "1Kib", "1KiB", "1gb", "--1", "++1", "+-1", "-+1", "1-", "1+", "1-1", "1+1", "1.2.3",
		"1..2", "..1", "1,5", "1_000", "0x10", "1e0x1", "NaN", "Inf", "inf", "null", "true", "1µ", "1m1", "1k3", "1Ki3",
		"1e9223372036854775807", "1e9223372036854775808", "1e4294967296", "1e4294967299", "1e-4294967299", "0e4294967296",
		"1e-10", "e-10", "e5", "e-9", "-e-10", ".e-10", "0e-10", ".0e-10", "1.e3", ".e3", "1.5e-9", "1.5e-8", "5e-10",
		"1e27", "1e28", "1e100", "-1e100", "1e-100", "1e19", "9e18", "10e18", "1E19", "1E+3", "1E-3", "1e03", "1e+03",
	}
	for _, number := range numbers {
		for _, suffix := range append([]string{"e3", "E3", "e+6", "e-3", "e-9", "e-12", "e18", "i", "Zi"}, suffixes...) {
			inputs = append(inputs, number+suffix)
		}
	}
	return inputs
}

// randomQuantity follows the grammar of quantities; one in five is then damaged in one place.
func randomQuantity(random *rand.Rand) string {
	var text strings.Builder
	text.WriteString([]string{"", "", "", "+", "-"}[random.IntN(5)])
	longest := []int{4, 10, 20, 30}[random.IntN(4)]
	digits(random, &text, random.IntN(longest+1))
	if random.IntN(2) == 0 {
		text.WriteByte('.')
		digits(random, &text, random.IntN(longest/2+1))
	}
	if random.IntN(4) == 0 {
		fmt.Fprintf(&text, "%c%s%d", "eE"[random.IntN(2)], []string{"", "+", "-"}[random.IntN(3)], random.IntN(24))
	} else {
		text.WriteString(suffixes[random.IntN(len(suffixes))])
	}
	if random.IntN(5) != 0 {
		return text.String()
	}
	const alphabet = "0123456789.+-eEinumkKMGTP x"
	damaged := []byte(text.String())
	at, char := random.IntN(len(damaged)+1), alphabet[random.IntN(len(alphabet))]
	if random.IntN(2) == 0 || at == len(damaged) {
		return string(damaged[:at]) + string(char) + string(damaged[at:])
	}
	damaged[at] = char
	return string(damaged)
}

func digits(random *rand.Rand, text *strings.Builder, count int) {
	for range count {
		// Corner cases are where the zeros are.
		text.WriteByte("0000123456789"[random.IntN(13)])
	}
}
