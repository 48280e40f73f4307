package main

import (
	"math"
	"strings"
	"time"
)

// City is a place that has a forecast.
type City struct {
	Name      string  `json:"name"`
	Latitude  float64 `json:"latitude"`  // degrees, north is positive
	Longitude float64 `json:"longitude"` // degrees, east is positive
}

var cities = []City{
	{"Pune", 18.52, 73.86},
	{"Nairobi", -1.29, 36.82},
	{"Lisbon", 38.72, -9.14},
	{"Oslo", 59.91, 10.75},
	{"Quito", -0.18, -78.47},
	{"Sapporo", 43.06, 141.35},
	{"Hobart", -42.88, 147.33},
}

func cityNamed(name string) (City, bool) {
	for _, c := range cities {
		if strings.EqualFold(c.Name, name) {
			return c, true
		}
	}
	return City{}, false
}

func cityNames() string {
	names := make([]string, len(cities))
	for i, c := range cities {
		names[i] = c.Name
	}
	return strings.Join(names, ", ")
}

// Forecast is what is expected of the coming hours in one city.
type Forecast struct {
	City   City    `json:"city"`
	Caller *Caller `json:"caller,omitempty"`
	Hours  []Hour  `json:"hours"`
}

// Hour is what is expected of one hour.
type Hour struct {
	Time     time.Time `json:"time"`
	Celsius  float64   `json:"celsius"`
	Humidity float64   `json:"humidity"` // 0 to 1
	Sky      string    `json:"sky"`
}

// forecast returns n hours for c, beginning with the hour of start. It is a
// formula, not a prophecy: warm in the afternoon, in summer and near the equator.
func forecast(c City, start time.Time, n int) Forecast {
	f := Forecast{City: c, Hours: make([]Hour, n)}
	first := start.UTC().Truncate(time.Hour)
	for i := range f.Hours {
		at := first.Add(time.Duration(i) * time.Hour)
		localHour := float64(at.Hour()) + c.Longitude/15
		// The northern summer is at its height near day 200.
		season := math.Cos(2*math.Pi*(float64(at.YearDay())-200)/365) * c.Latitude / 90
		day := math.Cos(2 * math.Pi * (localHour - 15) / 24)
		humidity := math.Round((0.6-0.25*day)*100) / 100
		f.Hours[i] = Hour{
			Time:     at,
			Celsius:  math.Round((28-math.Abs(c.Latitude)/3+15*season+5*day)*10) / 10,
			Humidity: humidity,
			Sky:      sky(humidity),
		}
	}
	return f
}

func sky(humidity float64) string {
	switch {
	case humidity > 0.75:
		return "rain"
	case humidity > 0.55:
		return "cloudy"
	default:
		return "clear"
	}
}
