package pulse

import (
	"fmt"
	"math"
	"strconv"
)

// A Value is a figure; NaN is one that is not known. As JSON it is rounded to what a
// reader can tell apart, and null if it is not known.
type Value float64

// Unknown is the value of what is not known.
func Unknown() Value { return Value(math.NaN()) }

// MarshalJSON implements [encoding/json.Marshaler].
func (v Value) MarshalJSON() ([]byte, error) {
	f := float64(v)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	// To four digits, or to a thousandth of one where that is finer.
	if a := math.Abs(f); a >= 10_000 {
		f = math.Round(f)
	} else {
		f = math.Round(f*1000) / 1000
	}
	return strconv.AppendFloat(nil, f, 'f', -1, 64), nil
}

// UnmarshalJSON implements [encoding/json.Unmarshaler].
func (v *Value) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*v = Unknown()
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("read a figure: want a number or null: %w", err)
	}
	*v = Value(f)
	return nil
}
